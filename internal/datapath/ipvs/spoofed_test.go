//go:build uml

package ipvs_test

import (
	"os"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/testing/conformance"
)

// TestSpoofed: forged SYNs create only as many templates of clients as their Service's share allows.
func TestSpoofed(t *testing.T) {
	conformance.Spoofed(t, open, func() (n int, err error) {
		text, err := os.ReadFile("/proc/thread-self/net/ip_vs_conn")
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) > 2 && f[2] == "0000" { // a template has no client port
				n++
			}
		}
		return n, err
	})
}
