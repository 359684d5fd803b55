-- What was done to keep within the budget; pid is new in version 6. The table is in told.sql.

CREATE VIEW governor AS
SELECT g.at AS timestamp, g.pid AS pid, o.name AS op, g.action AS action, g.reason AS reason, g.input AS input
FROM governor_ AS g LEFT JOIN op_ AS o ON o.id = g.op;
