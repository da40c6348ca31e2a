-- name: Book :exec
INSERT INTO bookings (room, night, guest, operation_id) VALUES ($1, $2, $3, $4);

-- name: Nights :one
SELECT count(*) FROM bookings WHERE operation_id = $1;
