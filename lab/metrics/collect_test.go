package metrics

import (
	"fmt"
	"strings"
	"testing"
)

// answer is a kubelet's answer with a pod's CPU seconds at a time.
func answer(seconds float64, at int64) string {
	return fmt.Sprintf(`# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="web",namespace="shop",pod="web-1"} %[1]g %[2]d
# TYPE container_memory_working_set_bytes gauge
container_memory_working_set_bytes{container="web",namespace="shop",pod="web-1"} 4096 %[2]d
container_memory_working_set_bytes{container="new",namespace="shop",pod="new"} 4096 %[2]d
# TYPE node_cpu_usage_seconds_total counter
node_cpu_usage_seconds_total %[1]g %[2]d
`, seconds, at)
}

// TestUsage: a rate needs two samples with different times. A repeated sample or a restarted counter gives no rate.
func TestUsage(t *testing.T) {
	var h history
	web := what{"shop", "web-1", "web"}
	for i, c := range []struct {
		seconds float64
		at      int64
		want    string
	}{
		{10, 1000, "none"},
		{12, 5000, "0.5 in 4s, 4096"},
		{12, 5000, "0.5 in 4s, 4096"}, // the same sample again
		{13, 15000, "0.1 in 10s, 4096"},
		{1, 25000, "none"}, // another container with the same name
		{3, 29000, "0.5 in 4s, 4096"},
	} {
		r, err := read(strings.NewReader(answer(c.seconds, c.at)))
		if err != nil {
			t.Fatal(err)
		}
		h.add(r)
		got := "none"
		if u, ok := h.usage(web); ok {
			got = fmt.Sprintf("%g in %v, %g", u.CPU, u.Window, u.Memory)
		}
		if got != c.want {
			t.Errorf("reading %d: %s, want %s", i, got, c.want)
		}
		if _, ok := h.usage(what{"shop", "new", "new"}); ok {
			t.Error("something whose CPU was not counted has a usage")
		}
	}
	if u, ok := h.usage(what{}); !ok || u.CPU != 0.5 {
		t.Errorf("the node uses %v, %v", u, ok)
	}
	if _, err := read(strings.NewReader("no metrics {")); err == nil {
		t.Error("what is no metrics is read")
	}
}
