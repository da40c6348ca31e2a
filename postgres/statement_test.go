package postgres_test

import (
	"testing"

	"mcpreplay/postgres"
)

func TestStatementsOfAnEffect(t *testing.T) {
	t.Parallel()
	for _, sql := range []string{
		"", "SELECT 1", " (SELECT 1)", "with x as (select 1) select * from x", "INSERT INTO t VALUES (1)", "VALUES (1)", "TABLE t",
		"/* COMMIT */ SELECT 1", "-- COMMIT\nSELECT 1", "CREATE TABLE commits (x int)", "commits", "CALL p()", "DO $$ BEGIN END $$",
		"SET LOCAL x = 1", "set /* a */ local x = 1", "SET CONSTRAINTS ALL DEFERRED", "NOTIFY x", "LOCK TABLE t", "SELECT 'a'; -- COMMIT",
	} {
		if err := postgres.Permit(sql); err != nil {
			t.Errorf("%q: %v", sql, err)
		}
	}
	for _, sql := range []string{
		"COMMIT", "commit;", "/**/commit", "/*/**/*/commit", "--\n\r\fcommit", ";;(;commit", "Abort/**/", "END", "start transaction",
		"SET x = 1", "SET SESSION x = 1", "SET /* LOCAL */ x = 1", "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", "SET TRANSACTION READ ONLY",
	} {
		if postgres.Permit(sql) == nil {
			t.Errorf("%q is permitted", sql)
		}
	}
}
