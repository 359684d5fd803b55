-- From version 1 to 2, before findings.sql: findings are whole there, and tell which part of the run they are about.
ALTER TABLE causal_chain_ ADD COLUMN tid INTEGER;
ALTER TABLE causal_chain_ ADD COLUMN from_ns INTEGER;
ALTER TABLE causal_chain_ ADD COLUMN to_ns INTEGER;
ALTER TABLE causal_chain_ ADD COLUMN finding TEXT;
DROP VIEW causal_chains;
