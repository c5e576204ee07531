package datapath_test

import (
	"testing"

	"github.com/fairway-net/fairway/internal/testing/conformance"
)

// BenchmarkModes compares the modes that this kernel has; that of IPVS, in user-mode
// Linux, is in its package.
func BenchmarkModes(b *testing.B) { conformance.Bench(b, modes()) }
