"""HTTP: the only module that knows FastAPI. Requests become questions to the services, their answers JSON."""
