package gateway

// Features returns the names of the optional parts of the Gateway API that this gateway has, sorted.
func Features() []string { return nil }
