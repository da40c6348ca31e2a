CREATE TABLE IF NOT EXISTS bookings (
  room         text NOT NULL,
  night        date NOT NULL,
  guest        text NOT NULL,
  operation_id text NOT NULL,
  PRIMARY KEY (room, night)
);
