package conformance

import "testing"

// differences is the one list of what mechanisms cannot do as the others, with the
// reason: first by the mechanism's name, as Info().Name has it, then by what differs.
//
// What differs is a part of the suite ("affinity", "spread", see suite.parts), one
// scenario ("scenarios/hairpin"), or a feature that several parts look at:
//
//	source    the source address that an endpoint sees is not compared
//	affinity  no Service has any, the part and its scenarios are left out
//	restart   a new instance does not come while connections are open
//	weights   no Service asks for them, and their scenarios are left out
//	chance    one request at a time, where chance would show every endpoint to each client
//	expiry    how long a client without connections stays is not measured
//
// An entry needs a reason that lies in the mechanism and not in our code, and it must
// name something that exists: TestDifferences holds that.
func differences() map[string]map[string]string {
	return map[string]map[string]string{
		"slow": { // the example that slow_test.go breaks
			"affinity":       "it remembers nothing, not even clients",
			"affinity-local": "it remembers nothing, not even clients",
			"failures":       "it remembers nothing, so that every Sync is a full one",
		},
		"ipvs": {
			"chance": "its schedulers take one endpoint after the other: clients in step may each get always the same",
			"expiry": "a client stays as long as IPVS remembers one of its connections, some minutes after it ended",
		},
		"userspace": {
			"restart": "it carries the connections itself: they end with the process",
		},
	}
}

// elsewhere says why a mode may be missing in the kernel that runs the tests, and where it
// is tested then. A mode that is not listed must work in every kernel that runs them.
func elsewhere() map[string]string {
	return map[string]string{
		"ipvs": "a kernel need not have IPVS: internal/datapath/ipvs runs its tests in user-mode Linux",
	}
}

// Missing handles the error by which a mode does not work in this kernel: the test is
// skipped if the list above gives a reason, and fails otherwise.
func Missing(t testing.TB, mode string, err error) {
	t.Helper()
	if why := elsewhere()[mode]; why != "" {
		t.Skipf("%s: %v", why, err)
	}
	t.Fatalf("mode %s does not work in this kernel: %v", mode, err)
}

// unsupported is what the datapath of that name cannot do.
func unsupported(name string) map[string]string { return differences()[name] }

// features are the names that an entry may have besides parts and scenarios.
func features() []string {
	return []string{"source", "affinity", "restart", "weights", "chance", "expiry"}
}
