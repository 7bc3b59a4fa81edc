"""What leaves the service over HTTP on behalf of an operator: guarded requests, and how they are signed."""
