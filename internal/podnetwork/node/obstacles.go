package node

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/nft"
)

// reasonDropped is the reason of what Obstacles find: another program drops what the node forwards.
const reasonDropped = "ForwardingDropped"

// Obstacles look for firewall chains that drop what the node forwards unless a rule accepts
// it: connections from clients outside and from pods, whatever carries Services and pods. Docker
// sets that policy, and an accept of ours in another table cannot overrule it, so all that can be
// done is to say why pods and Services are not reached. A chain whose rules accept what is from and
// to the pods is none. Chains of iptables-legacy are not visible here.
type Obstacles struct {
	Log *slog.Logger
	// Pods are the ranges of addresses of pods that the node forwards to and from; none of a family:
	// it has no pods. Empty: they are not known, and no rule is taken to accept them.
	Pods func() []netip.Prefix
	// Registry gets the metric fairway_forwarding_dropped. Nil: nothing is measured.
	Registry prometheus.Registerer
	// Event is told each chain once while it is there.
	Event func(reason, message string)
	// Now is told what there is after each look that found a change; empty: nothing.
	Now func(message string)

	known map[string]bool // what was found at the last look
}

// Run looks every few seconds, in the network namespace of the caller's thread, until ctx ends,
// which is no error.
func (o *Obstacles) Run(ctx context.Context) error {
	count := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "fairway", Name: "forwarding_dropped",
		Help: "Chains of other programs that drop forwarded packets, of which no rule accepts all packets of the pods",
	})
	if o.Registry != nil {
		o.Registry.MustRegister(count)
	}
	var reader nft.Reader
	defer reader.Close()
	tick := time.NewTicker(resync)
	defer tick.Stop()
	for {
		if found, err := findObstacles(ctx, &reader, o.Pods()); err == nil { // else what writes rules says what is wrong
			count.Set(float64(len(found)))
			o.report(found)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// report reports what has been found that was not there at the last look.
func (o *Obstacles) report(found []string) {
	changed := len(found) != len(o.known)
	now := make(map[string]bool, len(found))
	for _, message := range found {
		now[message] = true
		if o.known[message] {
			continue
		}
		changed = true
		o.Log.Warn("another program drops packets of pods and Services: " + message)
		o.Event(reasonDropped, message)
	}
	o.known = now
	if changed {
		o.Now(strings.Join(found, "; "))
	}
}

func findObstacles(ctx context.Context, r *nft.Reader, pods []netip.Prefix) (found []string, err error) {
	for _, family := range []nft.Family{nft.IPv4, nft.IPv6, nft.Inet} {
		var chains []nft.Chain
		err := r.Chains(ctx, family, "", func(c nft.Chain) error {
			if c.Base && c.Hook == unix.NF_INET_FORWARD && c.Drop {
				chains = append(chains, c)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		for _, c := range chains {
			if what := dropsOf(ctx, family, c, pods); what != "" {
				found = append(found, fmt.Sprintf("chain %s of table %s %s drops what no rule in it accepts%s [Docker does this: accept the podCIDRs there, as with `iptables -I FORWARD -s PODCIDR -j ACCEPT` and -d PODCIDR]", c.Name, family, c.Table, what))
			}
		}
	}
	return found, nil
}

// dropsOf says what of the pods' packets a chain that drops does not accept for certain; empty: nothing.
func dropsOf(ctx context.Context, family nft.Family, c nft.Chain, pods []netip.Prefix) string {
	if len(pods) == 0 {
		return ", packets of pods and Services too"
	}
	var ours []netip.Prefix
	for _, p := range pods {
		if family == nft.Inet || p.Addr().Is4() == (family == nft.IPv4) {
			ours = append(ours, p)
		}
	}
	if len(ours) == 0 {
		return ""
	}
	var rules firewall
	text, err := nft.List(ctx, family, c.Table)
	if err == nil {
		rules, err = readFirewall(text)
	}
	if err != nil {
		return fmt.Sprintf("; which those are cannot be read: %v", err)
	}
	var all []string
	for _, p := range rules.missing(c.Name, ours) {
		all = append(all, p.String())
	}
	if len(all) == 0 {
		return ""
	}
	return ": packets " + strings.Join(all, ", ")
}
