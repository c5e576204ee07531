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

// stop ends all instances. A reload may replace inst at this moment, so stop looks again until all servers have ended.
// Servers share one wait group over reloads.
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

// awaitServing waits until an instance answers on all its sockets. A server that has to stop before it serves would
// ignore that, and serve later.
func awaitServing(i *caddy.Instance) {
	for _, s := range i.Servers() {
		for _, a := range []net.Addr{s.Addr(), s.LocalAddr()} {
			for try := 0; a != nil && try < 20 && !serves(a); try++ {
				time.Sleep(time.Millisecond << min(try, 6)) // one second in total, because a flood may fill the socket
			}
		}
	}
}

// serves reports whether a server answers at an address. The server refuses the operation STATUS before a plugin sees it.
func serves(a net.Addr) bool {
	q := new(dns.Msg)
	q.Id, q.Opcode = dns.Id(), dns.OpcodeStatus
	c := &dns.Client{Net: a.Network(), Timeout: 100 * time.Millisecond}
	_, _, err := c.Exchange(q, a.String())
	return err == nil
}

// listeners returns the addresses of an instance as text.
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
