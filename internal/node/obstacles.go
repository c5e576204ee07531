package node

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/nft"
)

// reasonDropped is the reason of what Obstacles find: another program drops what the node forwards.
const reasonDropped = "ForwardingDropped"

// Obstacles look for firewall chains that drop what the node forwards unless a rule accepts
// it: connections from clients outside and from pods, whatever carries Services and pods. Docker
// sets that policy, and an accept of ours in another table cannot overrule it, so all that can be
// done is to say why pods and Services are not reached. Chains of iptables-legacy are not
// visible here.
type Obstacles struct {
	Log *slog.Logger
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
		Help: "Chains of other programs that drop forwarded packets unless one of their rules accepts them",
	})
	if o.Registry != nil {
		o.Registry.MustRegister(count)
	}
	var reader nft.Reader
	defer reader.Close()
	tick := time.NewTicker(resync)
	defer tick.Stop()
	for {
		if found, err := findObstacles(ctx, &reader); err == nil { // else what writes rules says what is wrong
			count.Set(float64(len(found)))
			o.tell(found)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// tell reports what has been found that was not there at the last look.
func (o *Obstacles) tell(found []string) {
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

func findObstacles(ctx context.Context, r *nft.Reader) (found []string, err error) {
	for _, family := range []nft.Family{nft.IPv4, nft.IPv6, nft.Inet} {
		err := r.Chains(ctx, family, "", func(c nft.Chain) error {
			if c.Base && c.Hook == unix.NF_INET_FORWARD && c.Drop {
				found = append(found, fmt.Sprintf("chain %s of table %s %s drops what no rule in it accepts (Docker does this: accept the podCIDRs there, as with `iptables -I FORWARD -s PODCIDR -j ACCEPT` and -d PODCIDR)", c.Name, family, c.Table))
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}
