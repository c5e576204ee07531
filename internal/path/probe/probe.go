package probe

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/miekg/dns"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/netns"
	"github.com/fairway-net/fairway/internal/path/observe"
	"github.com/fairway-net/fairway/internal/path/trace"
)

const (
	tcp = 6
	// lingers is how long an accepted connection is watched for a reset: a relay accepts before it has an endpoint.
	lingers = 30 * time.Millisecond
	// pollEvery bounds one wait, so that a cancelled context ends the probe.
	pollEvery = 100 * time.Millisecond
)

// Send sends the probe of an order, whose Send must be set. It works from the network namespace of the calling thread.
func Send(ctx context.Context, o trace.Order, cfg observe.Config) trace.Heard {
	patience := o.Send.Patience
	if patience == 0 {
		patience = trace.DefaultPatience
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	begin := time.Now()
	heard, err := sendFrom(ctx, o, cfg)
	if err != nil {
		heard = trace.Heard{Outcome: trace.Failed, Error: err.Error()}
	}
	heard.Took = time.Since(begin)
	return heard
}

// sendFrom sends from the client that the order names.
func sendFrom(ctx context.Context, o trace.Order, cfg observe.Config) (heard trace.Heard, err error) {
	client := o.Send.Pod
	switch {
	case o.Send.Outside.IsValid():
		return inject(ctx, o, o.Send.Outside)
	case client.IsValid() && o.Send.Inject:
		return inject(ctx, o, client)
	case client.IsValid():
		var entered bool
		err := inPod(client, cfg, func() error {
			entered, heard = true, send(ctx, o)
			return nil
		})
		if err == nil || entered {
			return heard, err
		}
		heard, injected := inject(ctx, o, client)
		if injected != nil {
			return heard, fmt.Errorf("%w; %w", err, injected)
		}
		return heard, nil
	}
	return send(ctx, o), nil
}

// inPod calls f in the namespace of a pod of this node.
func inPod(pod netip.Addr, cfg observe.Config, f func() error) error {
	file, err := observe.PodNamespace(pod, cfg)
	if err != nil {
		return err
	}
	fd, err := vnetns.GetFromPath(file)
	if err != nil {
		return fmt.Errorf("open the network namespace of pod %v: %w", pod, err)
	}
	defer fd.Close()
	if err := netns.Do(fd, f); err != nil {
		return fmt.Errorf("send from pod %v: %w [needs CAP_SYS_ADMIN]", pod, err)
	}
	return nil
}

// send sends from the namespace of the thread.
func send(ctx context.Context, o trace.Order) trace.Heard {
	s, err := open(o)
	if err != nil {
		return trace.Heard{Outcome: trace.Failed, Error: err.Error()}
	}
	defer s.close()
	h := s.talk(ctx, o)
	h.Local = s.local()
	return h
}

// talk connects, and asks a UDP server. It returns what the socket heard.
func (s *socket) talk(ctx context.Context, o trace.Order) trace.Heard {
	if err := s.connect(ctx, o.To); err != nil {
		return s.heard(err)
	}
	if o.Proto == tcp {
		return s.linger(ctx)
	}
	question, id := payload(o)
	if _, err := unix.Write(s.fd, question); err != nil {
		return s.heard(err)
	}
	answer := make([]byte, 4096)
	n, err := s.read(ctx, answer)
	if err != nil {
		return s.heard(err)
	}
	h := trace.Heard{Outcome: trace.Answered}
	if o.Send.Name != "" {
		h.Answer = describe(answer[:n], id)
	}
	return h
}

// linger waits a moment for the reset of a connection that was accepted.
func (s *socket) linger(ctx context.Context) trace.Heard {
	ctx, cancel := context.WithTimeout(ctx, lingers)
	defer cancel()
	_, err := s.read(ctx, make([]byte, 1))
	if errors.Is(err, unix.ECONNRESET) {
		return trace.Heard{Outcome: trace.Reset, Error: err.Error()}
	}
	return trace.Heard{Outcome: trace.Answered} // data, an orderly end, or nothing
}

// payload returns the datagram, and the id of a DNS question.
func payload(o trace.Order) (b []byte, id uint16) {
	if o.Send.Name != "" {
		m := new(dns.Msg)
		typ := dns.TypeA
		if o.To.Addr().Is6() {
			typ = dns.TypeAAAA
		}
		m.SetQuestion(dns.Fqdn(o.Send.Name), typ)
		if b, err := m.Pack(); err == nil {
			return b, m.Id
		}
	}
	text := "fairway path " + o.Run + "\n"
	return append([]byte(text), make([]byte, max(0, o.Send.Size-len(text)))...), 0
}

// describe returns a DNS answer in a few words. id is the question's, or 0.
func describe(b []byte, id uint16) string {
	m := new(dns.Msg)
	if err := m.Unpack(b); err != nil || id != 0 && m.Id != id {
		return "not a DNS answer"
	}
	text := dns.RcodeToString[m.Rcode]
	for _, r := range m.Answer {
		switch r := r.(type) {
		case *dns.A:
			text += " " + r.A.String()
		case *dns.AAAA:
			text += " " + r.AAAA.String()
		case *dns.CNAME:
			text += " " + r.Target
		}
		if len(text) > 200 {
			break
		}
	}
	return text
}
