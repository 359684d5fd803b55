-- From version 2 to 3, before sessions.sql: how much was thinned, and how large the file might become.
ALTER TABLE session_ ADD COLUMN thinned INTEGER NOT NULL DEFAULT 0;
ALTER TABLE session_ ADD COLUMN max_size INTEGER;
DROP VIEW sessions;
