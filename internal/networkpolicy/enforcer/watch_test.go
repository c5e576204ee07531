package enforcer

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/networkpolicy/nftables"
)

// Denials are logged with names, each once a minute, and not more than a few lines at a time.
func TestLogDenied(t *testing.T) {
	var out bytes.Buffer
	e := New(Config{Log: slog.New(slog.NewTextHandler(&out, nil)), Node: "node-1"})
	for name, pod := range map[string]*api.Pod{
		"web":    {Node: "node-1", Addrs: []netip.Addr{webAddr}},
		"client": {Node: "node-2", Addrs: []netip.Addr{clientAddr}},
	} {
		pod.Name = api.Name{Namespace: "default", Name: name}
		e.compiler.SetPod(pod.Name, pod)
	}
	e.compiler.SetPolicy(denyAll, &networkpolicy.Policy{Name: denyAll, Isolates: [2]bool{networkpolicy.Ingress: true}})
	e.compiler.Compile()
	one := denial{networkpolicy.Packet{Src: clientAddr, Dst: webAddr, Proto: api.TCP, Port: 80}, networkpolicy.Ingress}
	now := time.Now()
	e.logDenied([]denial{one}, now)
	want := "direction=ingress from=default/client to=default/web proto=TCP port=80 deniedBy=default/deny-all"
	if !strings.Contains(out.String(), want) {
		t.Errorf("logged %q, want %q in it", out.String(), want)
	}
	lines := func(at time.Time, all ...denial) int {
		out.Reset()
		e.logDenied(all, at)
		return strings.Count(out.String(), "\n")
	}
	if n := lines(now.Add(logPause/2), one); n != 0 {
		t.Errorf("again after half a minute: %d lines", n)
	}
	if n := lines(now.Add(logPause), one); n != 1 {
		t.Errorf("again after a minute: %d lines", n)
	}
	many := []denial{}
	for port := range uint16(1000) {
		d := one
		d.Port = 1000 + port
		many = append(many, d)
	}
	if n := lines(now.Add(logPause), many...); n != maxLines+1 {
		t.Errorf("%d lines for %d denials, want %d", n, len(many), maxLines+1)
	}
}

// The kernel's counts become counters, also when they begin at 0 again.
func TestCounted(t *testing.T) {
	r := prometheus.NewRegistry()
	m := NewMetrics(r)
	for _, n := range []uint64{5, 9, 2} {
		m.counted(nftables.Counts{networkpolicy.Ingress: n})
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := 0.0
	for _, f := range families {
		if f.GetName() == "fairway_policy_denied_packets_total" {
			for _, one := range f.GetMetric() {
				got += one.GetCounter().GetValue()
			}
		}
	}
	if got != 11 {
		t.Errorf("counted %v, want 5+4+2", got)
	}
}

// An owner hears once that a policy exceeds a limit, and again when it does so again.
func TestReport(t *testing.T) {
	var events []string
	e := New(Config{Log: slog.New(slog.DiscardHandler), Node: "node-1", Event: func(n api.Name, uid, reason, _ string) {
		events = append(events, fmt.Sprint(n, uid, " ", reason))
	}})
	e.Source = newObjects()
	e.Source.(*objects).Policies[denyAll] = &networkpolicy.Policy{UID: "-7"}
	big := &networkpolicy.Policy{Name: denyAll, Isolates: [2]bool{networkpolicy.Ingress: true}}
	big.Rules[networkpolicy.Ingress] = []networkpolicy.Rule{{Ports: make([]networkpolicy.Port, networkpolicy.MaxPeers+1)}}
	for range 2 {
		e.compiler.SetPolicy(denyAll, big)
		for range 3 {
			e.compiler.Compile()
			e.report()
		}
		e.compiler.SetPolicy(denyAll, nil)
		e.compiler.Compile()
		e.report()
	}
	if len(events) != 2 || events[0] != "default/deny-all-7 NetworkPolicyLimit" {
		t.Errorf("events: %q", events)
	}
}
