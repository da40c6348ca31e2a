package lab

func transportCells() []cell { return nil }
