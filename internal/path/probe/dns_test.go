package probe_test

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/path/probe"
	"github.com/fairway-net/fairway/internal/path/trace"
	"github.com/fairway-net/fairway/internal/testing/twonodes"
)

// TestDNS: a question is a probe, and the answer's code and addresses are heard, from a pod and injected.
func TestDNS(t *testing.T) {
	t.Parallel()
	c := twonodes.New(t, true, twonodes.NFTables)
	var conn net.PacketConn
	c.On(c.Server, func() (err error) {
		conn, err = (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", c.Endpoint.String())
		return err
	})
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(answerDNS)}
	ended := make(chan error, 1)
	go func() { ended <- server.ActivateAndServe() }()
	t.Cleanup(func() {
		_ = server.Shutdown()
		<-ended
	})
	for name, want := range map[string]string{"db.shop.svc.cluster.local": "NOERROR 10.96.0.7", "dbb.shop.svc.cluster.local": "NXDOMAIN"} {
		for _, injected := range []bool{false, true} {
			order := c.Order("", api.UDP, c.VIP)
			order.Send = &trace.Send{Pod: c.Client.Addr(true), Name: name, Inject: injected, Patience: 20 * time.Second}
			var heard trace.Heard
			c.On(c.Nodes[0], func() error {
				heard = probe.Send(t.Context(), order, c.Config())
				return nil
			})
			if heard.Outcome != trace.Answered || heard.Answer != want || heard.Injected != injected {
				t.Errorf("%s: heard %+v, want %s", name, heard, want)
			}
		}
	}
}

// answerDNS knows one name.
func answerDNS(w dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg).SetRcode(q, dns.RcodeNameError)
	if name := q.Question[0].Name; strings.HasPrefix(name, "db.") {
		m.Rcode = dns.RcodeSuccess
		m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 5}, A: net.IPv4(10, 96, 0, 7)}}
	}
	_ = w.WriteMsg(m)
}
