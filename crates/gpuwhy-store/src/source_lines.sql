-- Lines of source that stacks name, as they were while the run was recorded. New in version 6. The view is documented in
-- docs/run-file.md. text and around are NULL where files of one name differ: in containers, or in runs that were merged.
CREATE TABLE source_line_ (
    file TEXT NOT NULL,
    line INTEGER NOT NULL,
    text TEXT,
    around TEXT,
    PRIMARY KEY (file, line)
) WITHOUT ROWID;

CREATE VIEW source_lines AS SELECT file, line, text, around FROM source_line_;
