-- From version 1 to 2, before findings.sql: findings are whole there, and tell which part of the run they are about.
ALTER TABLE causal_chain_ ADD COLUMN tid INTEGER;
ALTER TABLE causal_chain_ ADD COLUMN from_ns INTEGER;
ALTER TABLE causal_chain_ ADD COLUMN to_ns INTEGER;
ALTER TABLE causal_chain_ ADD COLUMN finding TEXT;
DROP VIEW causal_chains;
ALTER TABLE gpu_process_ ADD COLUMN sm_percent INTEGER;
ALTER TABLE gpu_process_ ADD COLUMN name TEXT;
DROP VIEW gpu_processes;
CREATE VIEW gpu_processes AS
SELECT at / 1000000000 AS second, at AS timestamp, gpu, pid, bytes, sm_percent, name FROM gpu_process_;
