package lab

func faultCells() []cell { return nil }
