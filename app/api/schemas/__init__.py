"""The shapes of requests and answers as OpenAPI shows them."""
