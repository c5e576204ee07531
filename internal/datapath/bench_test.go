package datapath_test

import (
	"testing"

	"github.com/fairway-net/fairway/internal/testing/conformance"
)

// BenchmarkModes compares all modes that this kernel has. Package ipvs measures its mode in user-mode Linux.
func BenchmarkModes(b *testing.B) { conformance.Bench(b, modes()) }
