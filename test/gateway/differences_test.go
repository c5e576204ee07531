package gateway

// differences are tests that do not pass and are skipped, with the reason. The report names them.
var differences = map[string]string{}
