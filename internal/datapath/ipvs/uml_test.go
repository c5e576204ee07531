//go:build !uml

package ipvs_test

import (
	"bytes"
	"context"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/testing/testnet"
	"github.com/fairway-net/fairway/internal/testing/uml"
)

func TestMain(m *testing.M) { testnet.Main(m) }

// TestInUML runs the tests that need IPVS, those with the build tag uml, in a kernel that
// has it. It fails if they could not be run.
//
// Most of them run in virtual time: silence costs nothing there, and nothing is late
// because the machine is busy. Those in which load runs beside changes need real time.
// Each kernel has one CPU, so both run at a time.
func TestInUML(t *testing.T) {
	testnet.NeedRoot(t, "changes rules in user-mode Linux, which has the files that the user may read")
	const load = "TestConformance/(continuity|faults|established)|TestSwitch|TestUpgrade"
	const soak = "TestSoak" // only if FOR sets a duration: make soak
	binary, err := uml.Build(t.Context(), "uml", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	length, _ := time.ParseDuration(os.Getenv("FOR")) // 0 means no soak
	for _, run := range []struct {
		name    string
		threads string
		virtual bool
		args    []string
		ran     string // a test that must be among the passed tests
	}{
		{"virtual", "1", true, []string{"-test.skip", load + "|" + soak}, "TestConformance/scenarios"},
		{"real", "8", false, []string{"-test.run", load}, "TestConformance/continuity"},
		{soak, "8", false, []string{"-test.run", soak}, "TestSoak"},
	} {
		if run.name == soak && length == 0 {
			continue
		}
		t.Run(run.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute+length)
			defer cancel()
			dir, err := os.Getwd()
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			status, err := uml.Run(ctx, uml.Options{
				Program: binary, Args: append(run.args, "-test.v", "-test.timeout", "0"), Dir: dir,
				// The kernel has one CPU. With several threads, the kernel shares the CPU between the test and the
				// programs that make the load.
				Env: []string{"FAIRWAY_SEED=" + os.Getenv("FAIRWAY_SEED"), "FOR=" + os.Getenv("FOR"), "GOMAXPROCS=" + run.threads}, Output: &out, Virtual: run.virtual,
			})
			passed := strings.Count(out.String(), "--- PASS: ")
			if err != nil || status != 0 || !regexp.MustCompile(`--- PASS: `+run.ran+" ").MatchString(out.String()) {
				t.Fatalf("status %d, error %v, %d tests passed; all of the output:\n%s", status, err, passed, out.String())
			}
			if run.name == soak {
				t.Log(out.String())
			}
			t.Logf("%d tests passed in user-mode Linux", passed)
		})
	}
}

// BenchmarkInUML runs BenchmarkModes in user-mode Linux, and prints its output.
func BenchmarkInUML(b *testing.B) {
	binary, err := uml.Build(b.Context(), "uml", b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	dir, err := os.Getwd()
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		status, err := uml.Run(b.Context(), uml.Options{
			Program: binary, Dir: dir, Env: []string{"GOMAXPROCS=2"}, Output: os.Stdout,
			Args: []string{"-test.run", "^$", "-test.bench", "Modes", "-test.benchtime", "1x", "-test.timeout", "20m"},
		})
		if err != nil || status != 0 {
			b.Fatalf("status %d, error %v", status, err)
		}
	}
	b.ReportMetric(0, "ns/op") // the time of the boot means nothing
}
