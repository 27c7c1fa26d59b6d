-- What somebody did about runs that had ended as dead letters. History rows never
-- change, so it stands beside them; it goes a little after they do.

CREATE TABLE dead_mark (
    run     uuid     PRIMARY KEY,
    at      bigint   NOT NULL,
    fate    smallint NOT NULL,
    by_whom text
);
CREATE INDEX dead_mark_at ON dead_mark (at);
