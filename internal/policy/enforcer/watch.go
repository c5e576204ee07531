package enforcer

import (
	"context"
	"net/netip"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/policy"
	"github.com/fairway-net/fairway/internal/service"
)

// What is denied again is logged once a quiet, and at most so many lines a look.
const (
	quiet    = time.Minute
	maxLines = 50
)

// A denial is a first packet that one direction of a pod denied.
type denial struct {
	policy.Packet
	policy.Direction
}

// look reads what the kernel counted and noted. It is the loop's.
func (e *Enforcer) look(ctx context.Context) {
	counts, err := e.Table.Denied(ctx)
	if err == nil {
		e.Metrics.counted(counts)
	}
	var all []denial
	for d := policy.Egress; err == nil && e.LogDenied && d <= policy.Ingress; d++ {
		var some []policy.Packet
		some, err = e.Table.DeniedLately(ctx, d)
		for _, p := range some {
			all = append(all, denial{p, d})
		}
	}
	if err != nil && ctx.Err() == nil {
		e.Log.Debug("cannot read what NetworkPolicies denied", "err", err)
	}
	e.logDenied(all, time.Now())
}

// logDenied logs denials that were not logged lately.
func (e *Enforcer) logDenied(all []denial, now time.Time) {
	for d, at := range e.logged {
		if now.Sub(at) >= quiet {
			delete(e.logged, d)
		}
	}
	lines, more := 0, 0
	for _, d := range all {
		if _, known := e.logged[d]; known {
			continue
		}
		if lines == maxLines {
			more++
			continue
		}
		lines++
		e.logged[d] = now
		e.mu.RLock()
		from, by := e.compiler.Isolates(d.Src, d.Direction)
		to, _ := e.compiler.Isolates(d.Dst, d.Direction)
		if d.Direction == policy.Ingress {
			_, by = e.compiler.Isolates(d.Dst, d.Direction)
		}
		e.mu.RUnlock()
		e.Log.Info("NetworkPolicies denied packets", "direction", d.Direction.String(), "from", place(from, d.Src), "to", place(to, d.Dst),
			"proto", d.Proto.String(), "port", d.Port, "isolatedBy", joined(by))
	}
	if more > 0 {
		e.Log.Info("NetworkPolicies denied more packets, not logged one by one", "more", more)
	}
}

// place is a pod's name, or an address.
func place(pod service.Name, a netip.Addr) string {
	if pod == (service.Name{}) {
		return a.String()
	}
	return pod.String()
}

func joined(all []service.Name) string {
	if len(all) == 0 {
		return "nothing yet: the pod is not known"
	}
	var texts []string
	for _, n := range all {
		texts = append(texts, n.String())
	}
	return strings.Join(texts, ", ")
}

// report says which policies began to exceed a limit. The caller holds mu.
func (e *Enforcer) report() {
	now := e.compiler.Problems()
	for name, text := range now {
		if e.reported[name] != text {
			e.reported[name] = text
			e.Log.Warn("a NetworkPolicy exceeds a limit", "policy", name.String(), "problem", text)
			if e.Event != nil {
				e.Event(name, reasonLimit, text)
			}
		}
	}
	for name := range e.reported {
		if now[name] == "" {
			delete(e.reported, name)
		}
	}
}

// reasonLimit is the reason of the event.
const reasonLimit = "NetworkPolicyLimit"
