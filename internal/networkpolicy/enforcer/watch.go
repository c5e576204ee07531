package enforcer

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/networkpolicy"
)

// Repeated denials are logged once in logPause. A look logs at most maxLines lines.
const (
	logPause = time.Minute
	maxLines = 50
)

// A denial is a first packet that one direction of a pod denied.
type denial struct {
	networkpolicy.Packet
	networkpolicy.Direction
}

// readCounters reads the kernel's counters and its records of denials. Only the loop calls it.
func (e *Enforcer) readCounters(ctx context.Context) {
	counts, err := e.Table.Denied(ctx)
	if err == nil {
		e.Metrics.counted(counts)
	}
	var all []denial
	for d := networkpolicy.Egress; err == nil && e.LogDenied && d <= networkpolicy.Ingress; d++ {
		var some []networkpolicy.Packet
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

// logDenied logs denials that were not logged within logPause.
func (e *Enforcer) logDenied(all []denial, now time.Time) {
	for d, at := range e.logged {
		if now.Sub(at) >= logPause {
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
		from, to, by := e.explain(d)
		e.Log.Info("NetworkPolicies denied packets", "direction", d.Direction.String(), "from", from, "to", to,
			"proto", d.Proto.String(), "port", d.Port, "deniedBy", by)
	}
	if more > 0 {
		e.Log.Info("NetworkPolicies denied more packets, not logged one by one", "more", more)
	}
}

// explain returns the names of both ends of a denial, and the policies or the rule that denied it.
func (e *Enforcer) explain(d denial) (from, to, by string) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	source, byEgress := e.compiler.Isolates(d.Src, networkpolicy.Egress)
	target, byIngress := e.compiler.Isolates(d.Dst, networkpolicy.Ingress)
	decision, isolators := networkpolicy.Lookup(e.table, d.Packet), byEgress
	verdict := decision.Egress
	if d.Direction == networkpolicy.Ingress {
		verdict, isolators = decision.Ingress, byIngress
	}
	by = joined(isolators)
	if rule := e.table.RuleOf(verdict); rule.Tier != networkpolicy.Namespaced {
		by = rule.String()
	}
	return nameOrAddr(source, d.Src), nameOrAddr(target, d.Dst), by
}

// nameOrAddr is a pod's name, or an address.
func nameOrAddr(pod api.Name, a netip.Addr) string {
	if pod == (api.Name{}) {
		return a.String()
	}
	return pod.String()
}

func joined(all []api.Name) string {
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
				var uid string
				if p := e.Source.Policy(name); p != nil {
					uid = p.UID
				}
				e.Event(name, uid, reasonLimit, text)
			}
		}
	}
	for name := range e.reported {
		if now[name] == "" {
			delete(e.reported, name)
		}
	}
	e.reportPorts()
}

// reportPorts logs which pods began to exceed the limit of named ports. Each agent of the cluster can, so there is no
// event. The caller holds mu.
func (e *Enforcer) reportPorts() {
	now := e.compiler.OverPorts()
	for name := range now {
		if !e.overPorts[name] {
			e.overPorts[name] = true
			e.Log.Warn(fmt.Sprintf("a pod has more than %d named ports, or too many names for a port; in egress rules the others do not count [use numbers]",
				networkpolicy.MaxNamedPorts), "pod", name.String())
		}
	}
	for name := range e.overPorts {
		if !now[name] {
			delete(e.overPorts, name)
		}
	}
}

// reportUnsupported logs and reports the parts of a ClusterNetworkPolicy that have no effect.
func (e *Enforcer) reportUnsupported(p *networkpolicy.ClusterPolicy) {
	if p == nil || len(p.Problems) == 0 {
		return
	}
	text := strings.Join(p.Problems, "; ")
	e.Log.Warn("a ClusterNetworkPolicy is not enforced as it is written", "policy", p.Name, "problem", text)
	if e.Event != nil {
		e.Event(api.Name{Name: p.Name}, p.UID, reasonUnsupported, text)
	}
}

// The reasons of events.
const (
	reasonLimit       = "NetworkPolicyLimit"
	reasonUnsupported = "ClusterNetworkPolicyUnsupported"
)
