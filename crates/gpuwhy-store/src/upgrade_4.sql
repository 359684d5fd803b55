-- From version 3 to 4, before merge.sql: samples of the machine say which machine.
ALTER TABLE system_second_ ADD COLUMN input INTEGER NOT NULL DEFAULT 0;
DROP VIEW system_seconds;
