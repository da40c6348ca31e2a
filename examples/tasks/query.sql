-- name: AddTask :one
INSERT INTO tasks (operation_id, title, assignee) VALUES (?, ?, ?) RETURNING id;

-- name: OpenTasks :many
SELECT id, title FROM tasks WHERE assignee = ? AND done = 0 ORDER BY id;

-- name: TaskOfOperation :one
SELECT count(*) FROM tasks WHERE operation_id = ?;
