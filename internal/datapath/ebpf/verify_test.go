package ebpf

import (
	"testing"

	"github.com/cilium/ebpf"
)

// TestVerified: the kernel checks the programs quickly. Loops with many branches would take it seconds.
func TestVerified(t *testing.T) {
	spec, err := loadConnect()
	if err != nil {
		t.Fatal(err)
	}
	all, err := ebpf.NewCollection(spec)
	if err != nil {
		t.Fatal(err)
	}
	defer all.Close()
	for name, p := range all.Programs {
		info, err := p.Info()
		if err != nil {
			t.Fatal(err)
		}
		n, known := info.VerifiedInstructions()
		t.Logf("%s: %d instructions", name, n)
		if known && n > 100_000 {
			t.Errorf("%s: the kernel looks at %d instructions, want at most 100,000", name, n)
		}
	}
}
