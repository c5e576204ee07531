package speaker

import (
	"fmt"
	"testing"
)

// TestListen: the probes find the checks wherever the metrics are, and nothing listens twice.
func TestListen(t *testing.T) {
	const probes = "127.0.0.1:10281"
	for _, c := range []struct{ metrics, healthz, want string }{
		{probes, probes, "map[--metrics-bind-address:127.0.0.1:10281]"},
		{probes, "", "map[--metrics-bind-address:127.0.0.1:10281]"},
		{"192.0.2.7:10281", probes, "map[--healthz-bind-address:127.0.0.1:10281 --metrics-bind-address:192.0.2.7:10281]"},
		{"0.0.0.0:10281", probes, "map[--metrics-bind-address:0.0.0.0:10281]"},
		{":10281", probes, "map[--metrics-bind-address::10281]"},
		{":9", probes, "map[--healthz-bind-address:127.0.0.1:10281 --metrics-bind-address::9]"},
		{"", probes, "map[--healthz-bind-address:127.0.0.1:10281]"},
		{"", "", "map[]"},
	} {
		o := speakerOptions{metrics: c.metrics, healthz: c.healthz}
		if got := fmt.Sprint(o.listen()); got != c.want {
			t.Errorf("%q and %q: %s, want %s", c.metrics, c.healthz, got, c.want)
		}
	}
}
