package gateway

import (
	"flag"
	"slices"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client/config" // has the flag --kubeconfig
	"sigs.k8s.io/gateway-api/conformance"
	"sigs.k8s.io/gateway-api/conformance/tests"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
)

// testsOfRelease is the number of tests of the pinned release, those of meshes included.
const testsOfRelease = 153

// kubeconfig returns the value of the flag --kubeconfig.
func kubeconfig() string {
	if f := flag.Lookup(config.KubeconfigFlagName); f != nil {
		return f.Value.String()
	}
	return ""
}

// TestConformance runs upstream's suite with its own flags. The features are those that the GatewayClass names.
func TestConformance(t *testing.T) {
	if kubeconfig() == "" {
		t.Skip("--kubeconfig names no cluster [run make test-gateway]")
	}
	options := conformance.DefaultOptions(t)
	for name := range differences {
		options.SkipTests = append(options.SkipTests, name)
	}
	conformance.RunConformanceWithOptions(t, options)
}

// TestDifferences: each difference names a test of the suite.
func TestDifferences(t *testing.T) {
	if n := len(tests.ConformanceTests); n != testsOfRelease {
		t.Errorf("upstream has %d tests, and had %d", n, testsOfRelease)
	}
	for name, why := range differences {
		if !slices.ContainsFunc(tests.ConformanceTests, func(c suite.ConformanceTest) bool { return c.ShortName == name }) || why == "" {
			t.Errorf("%s: no such test, or no reason", name)
		}
	}
}
