package userspace_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
)

// TestFormerMark: the ip rule of an agent with another mark (0x2000 up to 16d7bce) is replaced, and removed with the
// other rules.
func TestFormerMark(t *testing.T) {
	r := newRig(t, 1)
	ip := func(args string) (out string) {
		t.Helper()
		must(t, r.node.Do(func() error {
			b, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
			out = string(b)
			return err
		}))
		return out
	}
	for _, family := range []string{"-4", "-6"} {
		ip(family + " rule add priority 1070 fwmark 0x2000/0x2000 table 1070 protocol 70")
	}
	r.sync(r.service(api.TCP, 0))
	for _, family := range []string{"-4", "-6"} {
		if got := ip(family + " rule show priority 1070"); strings.Count(got, "\n") != 1 || !strings.Contains(got, "fwmark 0x1000/0x1000") {
			t.Errorf("%s: rules after an upgrade:\n%s", family, got)
		}
	}
	r.check()
	must(t, r.node.Do(func() error { return r.dp.Cleanup(t.Context()) }))
	for _, family := range []string{"-4", "-6"} {
		if got := ip(family + " rule show priority 1070"); got != "" {
			t.Errorf("%s: rules after a cleanup:\n%s", family, got)
		}
	}
}
