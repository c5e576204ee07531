package conformance

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func TestMain(m *testing.M) { testnet.Main(m) }

// The obvious datapath passes, so the suite requires only the contract.
func TestObvious(t *testing.T) { small("", 5*time.Second).run(t) }

// Each difference names a check of the suite, and has a reason.
func TestDifferences(t *testing.T) {
	all, err := load()
	if err != nil {
		t.Fatal(err)
	}
	known := features()
	for _, p := range parts() {
		known = append(known, p.name)
	}
	for _, one := range all {
		known = append(known, "scenarios/"+one.Name)
	}
	for mechanism, list := range differences() {
		for what, why := range list {
			if !slices.Contains(known, what) || len(why) < 20 {
				t.Errorf("%s: %q: %q: no such part, or no reason", mechanism, what, why)
			}
		}
	}
}

// A suite must reject wrong datapaths. Each of these datapaths has one error, and the named part of the suite must find
// it.
func TestSuiteFindsBugs(t *testing.T) {
	for _, c := range []struct {
		bug  string
		part func(suite, testing.TB)
	}{
		{"no masquerade", only("clusterip")},
		{"masquerade for all", only("external-local")},
		{"no hairpin", only("hairpin")},
		{"reject is drop", only("fqdn-slice")},
		{"drop is reject", only("external-local-none-here")},
		{"inside for all", only("external-local-none-here")},
		{"first endpoint only", only("clusterip")},
		{"no IPv6", only("clusterip-ipv6")},
		{"no UDP", only("protocols")},
		{"no SCTP", only("protocols")},
		{"NodePorts anywhere", only("nodeport")},
		{"node ignored", only("clusterip")},
		{"everyone may come in", only("source-ranges")},
		{"no interfaces", only("detect-interface")},
		{"unserved ports pass", only("wrong-port")},
		{"dump forgets", only("clusterip")},
		{"writes again", only("clusterip")},
		{"cleanup leaves a table", suite.cleanup},
		{"invalid passes", suite.invalid},
		{"notices nothing", suite.flushed},
		{"forgets flows", suite.established},
		{"not atomic", suite.continuity},
		{"unfair", suite.spread},
		{"weights ignored", suite.algorithms},
		{"ports kept", suite.ports},
		{"explains nothing", suite.explained},
	} {
		t.Run(c.bug, func(t *testing.T) {
			testnet.NeedRoot(t, "makes network namespaces")
			t.Parallel()
			found := &recorder{TB: t}
			found.run(func() { c.part(small(c.bug, time.Second), found) })
			if len(found.errors) == 0 {
				t.Error("the suite did not notice")
			}
			for _, e := range found.errors {
				t.Logf("found: %s", e)
			}
		})
	}
}

// small returns a suite of a size that suits a datapath which starts nft for every step.
func small(bug string, patience time.Duration) suite {
	return suite{
		open:     func(testing.TB) Datapath { return &slow{bug: bug} },
		services: 100, changes: 36, patience: patience,
		unsupported: unsupported("slow"),
	}
}

// only returns a suite with one scenario.
func only(name string) func(suite, testing.TB) {
	return func(s suite, t testing.TB) {
		all, err := load()
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range all {
			if one.Name == name {
				report(t, s.scenario(t, one))
				return
			}
		}
		panic("no scenario " + name)
	}
}

// A recorder is a test that should fail. Its cleanups belong to the real test.
type recorder struct {
	testing.TB
	mu     sync.Mutex
	errors []string
}

func (r *recorder) run(f func()) {
	done := make(chan struct{})
	go func() { // Fatal ends the goroutine
		defer close(done)
		f()
	}()
	<-done
}

func (r *recorder) Error(args ...any)                 { r.note(fmt.Sprint(args...)) }
func (r *recorder) Errorf(format string, args ...any) { r.note(fmt.Sprintf(format, args...)) }
func (r *recorder) Fatal(args ...any)                 { r.note(fmt.Sprint(args...)); runtime.Goexit() }
func (r *recorder) Fatalf(format string, args ...any) {
	r.note(fmt.Sprintf(format, args...))
	runtime.Goexit()
}

func (r *recorder) note(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errors = append(r.errors, text)
}

// report reports every joined error separately.
func TestReport(t *testing.T) {
	r := &recorder{TB: t}
	report(r, errors.Join(errors.New("a"), nil, errors.Join(errors.New("b"), errors.New("c"))))
	report(r, nil)
	if fmt.Sprint(r.errors) != "[a b c]" {
		t.Errorf("reported %q", r.errors)
	}
}
