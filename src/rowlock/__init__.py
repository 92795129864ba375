"""Durable jobs in the database you already have."""
