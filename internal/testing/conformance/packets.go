package conformance

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/scenario"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// everywhere returns a packet from each place, and from each local endpoint of the frontend, to each frontend of the
// table, and to a port of each address that no Service has. Each has the outcome that the table says, or the outcome of a datapath that cannot carry it.
func (r *rig) everywhere(t *service.Table) []scenario.Packet {
	t = r.supportedPart(t)
	var out []scenario.Packet
	addrs := map[netip.Addr]bool{}
	for _, f := range t.Sorted() {
		is4, port := f.Addr.Addr().Is4(), f.Addr.Port()
		to := []netip.AddrPort{f.Addr}
		switch w := &scenario.World; {
		case f.NodePort():
			to = []netip.AddrPort{netip.AddrPortFrom(w.Node.Addr(is4), port), netip.AddrPortFrom(w.Extra.Addr(is4), port)}
		case !addrs[f.Addr.Addr()]:
			addrs[f.Addr.Addr()] = true
			to = append(to, netip.AddrPortFrom(f.Addr.Addr(), 7))
		}
		var from []scenario.From
		for _, p := range scenario.Places() {
			from = append(from, scenario.From{Place: p.Name, Addr: p.Addr(is4)})
		}
		for _, e := range f.Internal.Endpoints {
			if a := e.Addr.Addr(); e.Local && a != scenario.World.Node.Addr(is4) {
				from = append(from, scenario.From{Place: a.String(), Addr: a})
			}
		}
		for _, who := range from {
			for _, at := range to {
				p := scenario.Packet{From: who, To: at, Proto: f.Proto}
				if want, ok := scenario.Predict(t, p); ok {
					p.Want = want
					p.Text = fmt.Sprintf("from=%s to=%v/%v -> %v", who.Place, p.To, p.Proto, want)
					out = append(out, p)
				}
			}
		}
	}
	return out
}

// packets sends all packets, several at a time, and returns an error for each that differs. If endpoints take turns, it
// sends one packet at a time: clients in step would each always get one endpoint.
func (r *rig) packets(all []scenario.Packet) error {
	var (
		mu   sync.Mutex
		errs []error
		wait sync.WaitGroup
		slot = make(chan struct{}, 16)
	)
	if r.turns || r.suite.unsupported["chance"] != "" {
		slot = make(chan struct{}, 1)
	}
	for _, p := range all {
		if p.Proto == api.SCTP && r.suite.unsupported["sctp"] != "" || !r.returns(p) {
			continue
		}
		slot <- struct{}{}
		wait.Go(func() {
			defer func() { <-slot }()
			if err := r.packet(p); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, fmt.Errorf("packet %s: %w", p.Text, err))
			}
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}

// returns reports whether replies come back through the node from every endpoint. An endpoint on another node that sees
// a client on another node sends its reply directly, from an address that the client did not call. No datapath could
// help this client.
func (r *rig) returns(p scenario.Packet) bool {
	onNode := func(a netip.Addr) bool {
		h := r.hosts[a]
		return h == r.node || h != nil && h.Node() == r.node
	}
	return onNode(p.From.Addr) || !slices.ContainsFunc(p.Want.Reaches, func(reach scenario.Reach) bool {
		return reach.Source != scenario.Node && !onNode(reach.Endpoint.Addr())
	})
}

// packet sends p until it has seen every endpoint that may answer.
func (r *rig) packet(p scenario.Packet) error {
	client := r.hosts[p.From.Addr]
	ask := func(d time.Duration) testnet.Answer { return client.Ask(network(p.Proto), p.To, d) }
	switch p.Want.Action {
	case service.Drop:
		if got := ask(testnet.Patience); got.Outcome != testnet.Dropped {
			return errors.New(got.String())
		}
		return nil
	case service.Reject:
		if got := ask(r.suite.patience); got.Outcome != testnet.Refused {
			return errors.New(got.String())
		}
		return nil
	}
	if p.Want.Affinity {
		return r.keepsEndpoint(p, ask)
	}
	// With n endpoints a fair choice misses one in 40*n tries once in 10^17.
	n := len(p.Want.Reaches)
	missing := slices.Clone(p.Want.Reaches)
	if p.Want.Subset {
		missing = nil
	}
	for i := 0; i < 40*n && (len(missing) > 0 || i < 2*n); i++ {
		got := ask(r.suite.patience)
		if err := r.fits(p, got); err != nil {
			return err
		}
		missing = slices.DeleteFunc(missing, func(w scenario.Reach) bool { return w.Endpoint == got.At })
	}
	if len(missing) > 0 {
		return fmt.Errorf("after %d tries never answered by %v", 40*n, missing)
	}
	return nil
}

// keepsEndpoint sends p until one endpoint has answered often enough that it is the only one.
func (r *rig) keepsEndpoint(p scenario.Packet, ask func(time.Duration) testnet.Answer) error {
	var home netip.AddrPort
	for range 8 {
		got := ask(r.suite.patience)
		if err := r.fits(p, got); err != nil {
			return err
		}
		if home.IsValid() && got.At != home {
			return fmt.Errorf("%v, but before by %v: the client does not stay", got, home)
		}
		home = got.At
	}
	return nil
}

// fits checks that one of the endpoints answered, and that it saw the right source address.
func (r *rig) fits(p scenario.Packet, got testnet.Answer) error {
	if got.Outcome != testnet.Answered {
		return errors.New(got.String())
	}
	at := slices.IndexFunc(p.Want.Reaches, func(w scenario.Reach) bool { return w.Endpoint == got.At })
	if at < 0 || got.By != r.hosts[got.At.Addr()].Name {
		return fmt.Errorf("%v, which is not among the endpoints", got)
	}
	return r.checkSource(p, p.Want.Reaches[at], got)
}

// checkSource checks the source address that the endpoint saw.
func (r *rig) checkSource(p scenario.Packet, want scenario.Reach, got testnet.Answer) error {
	hairpin := p.Proto == api.TCP && got.At.Addr() == p.From.Addr
	if r.suite.unsupported["source"] != "" || hairpin && r.suite.unsupported["hairpin-source"] != "" {
		return nil
	}
	byNode := r.hosts[got.Seen.Addr()] == r.node
	switch {
	case want.Source == scenario.Node && !byNode:
		return fmt.Errorf("%v, not the node: it was not masqueraded", got)
	case want.Source == scenario.Client && p.From.Place != scenario.World.Node.Name && got.Seen.Addr() != p.From.Addr:
		return fmt.Errorf("%v, not the client", got)
	}
	return nil
}

func hasEndpoint(all []service.Endpoint, a netip.AddrPort) bool {
	return slices.ContainsFunc(all, func(e service.Endpoint) bool { return e.Addr == a })
}

func sorted(all []service.Endpoint) []service.Endpoint {
	return slices.SortedFunc(slices.Values(all), func(a, b service.Endpoint) int { return a.Addr.Compare(b.Addr) })
}
