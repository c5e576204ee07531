package dns

import (
	"errors"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/coredns/caddy"
	"github.com/miekg/dns"
)

// stop ends every instance there is. A reload may be at work at this moment and
// put a new instance in the place of inst, so it looks again until all servers,
// which share one wait group over reloads, have ended.
func stop(inst *caddy.Instance) error {
	ended := make(chan struct{})
	go func() {
		inst.Wait()
		close(ended)
	}()
	var errs []error
	for {
		for _, i := range slices.Clone(caddy.Instances()) {
			awaitServing(i)
			errs = append(errs, i.ShutdownCallbacks()...)
			errs = append(errs, i.Stop())
		}
		select {
		case <-ended:
			return errors.Join(errs...)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// awaitServing waits until an instance takes questions on all its sockets: a server that is told to
// stop before it has begun to serve begins later, and is never told again.
func awaitServing(i *caddy.Instance) {
	for _, s := range i.Servers() {
		for _, a := range []net.Addr{s.Addr(), s.LocalAddr()} {
			for try := 0; a != nil && try < 20 && !serves(a); try++ {
				time.Sleep(time.Millisecond << min(try, 6)) // a second in all: a flood may fill the socket
			}
		}
	}
}

// serves reports whether a server answers at an address. It asks with an operation that servers
// refuse before any plugin sees it.
func serves(a net.Addr) bool {
	q := new(dns.Msg)
	q.Id, q.Opcode = dns.Id(), dns.OpcodeStatus
	c := &dns.Client{Net: a.Network(), Timeout: 100 * time.Millisecond}
	_, _, err := c.Exchange(q, a.String())
	return err == nil
}

// listeners names the addresses that an instance serves.
func listeners(inst *caddy.Instance) string {
	var on []string
	for _, s := range inst.Servers() {
		if a := s.Addr(); a != nil {
			on = append(on, a.String())
		}
	}
	slices.Sort(on)
	return strings.Join(on, " ")
}
