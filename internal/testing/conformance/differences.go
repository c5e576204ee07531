package conformance

import "testing"

// differences lists all checks that a mechanism is exempt from, with the reason. The keys are the mechanism's name
// (Info().Name) and the name of the check.
//
// A check is a part of the suite ("affinity", "spread", see suite.parts), one scenario ("scenarios/hairpin"), or a feature
// in several parts:
//
//	source    the source address that an endpoint sees is not compared
//	hairpin-source  like source, only for TCP from a pod to itself
//	affinity  no Service has affinity; the part and its scenarios are left out
//	restart   no new instance starts while connections are open
//	weights   no Service has weights; their scenarios are left out
//	chance    one request at a time, where chance would show every endpoint to each client
//	expiry    how long a client without connections stays is not measured
//
// The reason must be a property of the mechanism, not of our code. TestDifferences holds that each key exists.
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
		"ebpf": {
			"hairpin-source": "a pod that connects to itself through a Service sees its own address",
			"same-port":      "connections to an endpoint and to its Service are connections to one address, so they share the client's free ports",
		},
		"userspace": {
			"restart": "it carries the connections itself: they end with the process",
		},
	}
}

// elsewhere says why a mode may be missing in the kernel that runs the tests, and where the mode is tested instead.
// Every other mode must work in every kernel that runs the tests.
func elsewhere() map[string]string {
	return map[string]string{
		"ipvs": "a kernel need not have IPVS: internal/datapath/ipvs runs its tests in user-mode Linux",
	}
}

// Missing handles the error of a mode that does not work in this kernel. It skips the test if elsewhere has the mode.
// Otherwise the test fails.
func Missing(t testing.TB, mode string, err error) {
	t.Helper()
	if why := elsewhere()[mode]; why != "" {
		t.Skipf("%s: %v", why, err)
	}
	t.Fatalf("mode %s does not work in this kernel: %v", mode, err)
}

// unsupported returns the checks that the datapath with a name is exempt from.
func unsupported(name string) map[string]string { return differences()[name] }

// features are the allowed keys other than parts and scenarios.
func features() []string {
	return []string{"source", "hairpin-source", "affinity", "restart", "weights", "chance", "expiry"}
}
