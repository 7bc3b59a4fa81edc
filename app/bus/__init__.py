"""How published events reach their readers inside one process."""
