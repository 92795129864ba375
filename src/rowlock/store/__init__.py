"""The first floor: SQL, and all of it. Plain sync functions of a SQLAlchemy `Connection`."""
