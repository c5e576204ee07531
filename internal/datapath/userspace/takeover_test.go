package userspace_test

import (
	"context"
	"errors"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/iptables"
	"github.com/fairway-net/fairway/internal/datapath/nftables"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestTakeover: the node changes from another mode to userspace and back while clients send requests. No request is
// refused, and established connections stay.
func TestTakeover(t *testing.T) {
	for name, open := range map[string]func() (datapath.Datapath, error){
		"nftables": func() (datapath.Datapath, error) { return nftables.New(nftables.Config{}) },
		"iptables": func() (datapath.Datapath, error) { return iptables.New(iptables.Config{}) },
	} {
		t.Run(name, func(t *testing.T) {
			other, err := open()
			must(t, err)
			defer other.Close()
			takeover(t, other)
		})
	}
}

func takeover(t *testing.T, other datapath.Datapath) {
	r := newRig(t, 2)
	for i := range 2 {
		r.pods[i].Serve("tcp", r.at(i))
		r.pods[i].Serve("udp", r.at(i))
	}
	both := append(r.service(api.TCP, 0, 1).Sorted(), r.service(api.UDP, 0, 1).Sorted()...)
	want := service.NewTable(r.service(api.TCP, 0).Settings, both)
	userspace := r.dp
	var conns []*testnet.Conn
	check := func(when string) {
		t.Helper()
		for i, c := range conns {
			if got := c.Ask(patience); got.Outcome != testnet.Answered {
				t.Errorf("%s: connection %d: %v", when, i, got)
			}
		}
		for _, from := range []*testnet.Host{r.client, r.node, r.outside} {
			for _, network := range []string{"tcp", "udp"} {
				conns = append(conns, r.connected(from, network))
			}
		}
	}
	r.dp = other
	r.sync(want)
	check("at first")
	load := r.load()
	for _, to := range []datapath.Datapath{userspace, other, userspace} {
		from := r.dp
		r.dp = to
		r.sync(want)
		check(to.Info().Name + " beside " + from.Info().Name)
		must(t, r.node.Do(func() error {
			if from.Info().Capabilities.CarriesFlows {
				_, err := from.Drain(context.Background())
				return err
			}
			return from.Cleanup(context.Background())
		}))
		check(to.Info().Name + " alone")
	}
	must(t, load())
	for _, c := range conns {
		c.Close()
	}
}

// load sends requests from everywhere in a loop until stop is called. stop returns the failed requests.
func (r *rig) load() (stop func() error) {
	done := make(chan struct{})
	errs := make(chan error, 3)
	clients := []*testnet.Host{r.client, r.node, r.outside}
	for _, from := range clients {
		go func() {
			for n := 0; ; n++ {
				select {
				case <-done:
					errs <- nil
					return
				default:
				}
				if got := from.Ask("tcp", vip, patience); got.Outcome != testnet.Answered {
					errs <- errors.New(from.Name + ": " + got.String())
					return
				}
			}
		}()
	}
	return func() (err error) {
		close(done)
		for range clients {
			err = errors.Join(err, <-errs)
		}
		return err
	}
}
