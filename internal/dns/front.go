package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	clog "github.com/coredns/coredns/plugin/pkg/log"
	"github.com/coredns/coredns/plugin/pkg/reuseport"
	"github.com/coredns/coredns/plugin/pkg/transport"
	"github.com/miekg/dns"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// A question about a name of the cluster passes ten plugins, is unpacked and packed, and needs a goroutine. Its answer is
// the same until an object changes. So each UDP port of a server with the kubernetes plugin has a second socket, the front,
// which answers such questions from kept messages.
//
//	packet ── filter ──> front ── kept answer whose objects are the same ──> client
//	             |          └──── everything else: CoreDNS's plugins ──────> client
//	             └─────> CoreDNS's socket: names outside, other types and forms
//
// A Corefile with a plugin that changes answers has no front (keptWith).
type front struct {
	conn    *net.UDPConn
	packets *ipv6.PacketConn // also for IPv4: only its batches are used
	port    atomic.Pointer[frontPort]
	closing atomic.Bool
	running sync.WaitGroup
}

// A frontPort is what a front serves for one Corefile.
type frontPort struct {
	load   *corefileLoad
	server *dnsserver.Server
	zones  []*frontZone
	kept   keptStore
}

// A corefileLoad is the identity of one start of a Corefile.
type corefileLoad struct{ _ byte }

// fronts are the fronts of the process by CoreDNS's name of the address, as dns://:53.
var fronts struct {
	mu    sync.Mutex
	open  map[string]*front
	ended bool // no further ones open
}

const (
	frontBatch   = 32
	frontReaders = 4
	frontDrain   = 20 * time.Millisecond // for packets in the queue of a front that closes
	frontWait    = 5 * time.Second       // for questions under way at the end, as CoreDNS
)

// serveFront lets the front of a server's address serve the zones. CoreDNS calls it when a Corefile's server starts.
func serveFront(load *corefileLoad, server *dnsserver.Server, zones []*frontZone) {
	fronts.mu.Lock()
	defer fronts.mu.Unlock()
	f := fronts.open[server.Addr]
	if fronts.ended || f == nil && len(zones) == 0 {
		return
	}
	port := &frontPort{load: load, server: server, zones: zones, kept: keptStore{all: map[string]*kept{}}}
	if len(zones) > maxFilterZones {
		port.zones = nil
	}
	var err error
	if f == nil {
		f, err = openFront(server.Addr, port)
	} else {
		f.port.Store(port)
		err = f.filter(port.zones)
	}
	if err != nil {
		clog.Warningf("CoreDNS answers all questions at %s itself, with more CPU: %v", server.Addr, err)
		return
	}
	if fronts.open == nil {
		fronts.open = map[string]*front{}
	}
	fronts.open[server.Addr] = f
}

// openFront opens the second socket of an address.
func openFront(addr string, port *frontPort) (*front, error) {
	pc, err := reuseport.ListenPacket("udp", strings.TrimPrefix(addr, transport.DNS+"://"))
	if err != nil {
		return nil, fmt.Errorf("open a second socket: %w", err)
	}
	f := &front{conn: pc.(*net.UDPConn)}
	f.packets = ipv6.NewPacketConn(f.conn)
	// An answer must come from the address that the client asked.
	err6 := f.packets.SetControlMessage(ipv6.FlagDst, true)
	if err6 != nil {
		err = ipv4.NewPacketConn(f.conn).SetControlMessage(ipv4.FlagDst, true)
	}
	f.port.Store(port)
	if err == nil {
		err = f.filter(port.zones)
	}
	if err != nil {
		_ = f.conn.Close()
		return nil, err
	}
	for range min(frontReaders, runtime.GOMAXPROCS(0)) {
		f.running.Go(f.serve)
	}
	return f, nil
}

// filter chooses the packets of the front.
func (f *front) filter(zones []*frontZone) error {
	program, err := frontFilter(zones)
	if err != nil {
		return err
	}
	raw, err := f.conn.SyscallConn()
	if err != nil {
		return err
	}
	set := func(fd uintptr) {
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
	}
	if e := raw.Control(set); e != nil {
		return e
	}
	if err != nil {
		return fmt.Errorf("attach the filter of the zones: %w", err)
	}
	return nil
}

// beginFronts allows fronts until endFronts.
func beginFronts() {
	fronts.mu.Lock()
	defer fronts.mu.Unlock()
	fronts.ended = false
}

// endFronts closes all fronts, and allows no more.
func endFronts() {
	fronts.mu.Lock()
	fronts.ended = true
	fronts.mu.Unlock()
	closeFronts(func(*corefileLoad) bool { return true })
}

// closeFronts closes the fronts of some starts of a Corefile, and waits for their goroutines. The packets in their queues
// are answered.
func closeFronts(of func(*corefileLoad) bool) {
	fronts.mu.Lock()
	defer fronts.mu.Unlock()
	for addr, f := range fronts.open {
		if !of(f.port.Load().load) {
			continue
		}
		_ = f.filter(nil) // CoreDNS's socket gets the next packets
		f.closing.Store(true)
		_ = f.conn.SetReadDeadline(time.Now().Add(frontDrain))
		ended := make(chan struct{})
		go func() {
			f.running.Wait()
			close(ended)
		}()
		select {
		case <-ended:
		case <-time.After(frontWait):
		}
		_ = f.conn.Close()
		delete(fronts.open, addr)
	}
}

// serve answers packets until the front closes.
func (f *front) serve() {
	in, out := make([]ipv6.Message, frontBatch), make([]ipv6.Message, frontBatch)
	buffers, done := make([][]byte, frontBatch), make([]counted, frontBatch)
	for i := range in {
		in[i].Buffers, in[i].OOB = [][]byte{make([]byte, dns.MinMsgSize)}, make([]byte, 128)
		buffers[i] = make([]byte, 0, maxKeptSize+optSize)
		out[i].Buffers = make([][]byte, 1)
	}
	for {
		n, err := f.packets.ReadBatch(in, 0)
		if err != nil && (f.closing.Load() || errors.Is(err, net.ErrClosed)) {
			return
		}
		if err != nil {
			time.Sleep(time.Millisecond) // out of memory, perhaps
			continue
		}
		start, answers := time.Now(), 0
		for i := range in[:n] {
			msg, from := in[i].Buffers[0][:in[i].N], in[i].Addr.(*net.UDPAddr)
			source := replySource(in[i].OOB[:in[i].NN])
			b, c := f.port.Load().answer(buffers[answers][:0], msg, from.AddrPort().Addr().Unmap())
			if b == nil {
				f.passOn(slices.Clone(msg), slices.Clone(source), from)
				continue
			}
			out[answers].Buffers[0], out[answers].Addr, out[answers].OOB = b, from, source
			buffers[answers], done[answers] = b, c
			answers++
		}
		f.write(out[:answers])
		keptAnswers.Add(float64(answers))
		d := time.Since(start)
		for _, c := range done[:answers] {
			c.count(c.request, c.response, c.do, d)
		}
	}
}

// counted is an answer for the metrics.
type counted struct {
	*counters
	request, response int
	do                bool
}

// write sends answers. A packet that the kernel does not take is lost, as any packet may be.
func (f *front) write(out []ipv6.Message) {
	for len(out) > 0 {
		n, err := f.packets.WriteBatch(out, 0)
		if err != nil {
			n = 1
		}
		out = out[n:]
	}
}

// answer appends the kept answer to a message. It returns nil if there is none.
func (p *frontPort) answer(b, msg []byte, from netip.Addr) ([]byte, counted) {
	q, ok := parseQuestion(msg)
	if !ok {
		return nil, counted{}
	}
	i := slices.IndexFunc(p.zones, func(z *frontZone) bool { return q.isIn(z.wire) })
	if i < 0 {
		return nil, counted{}
	}
	z := p.zones[i]
	if z.clients != nil && !z.clients.has(from, q.qtype) {
		return nil, counted{}
	}
	k := p.kept.get(q.key)
	if k == nil || !k.same(z.kubernetes.APIConn) {
		if k = z.newKept(q); k == nil {
			return nil, counted{}
		}
		p.kept.put(q.key, k)
	}
	if !z.pass(k.name) {
		return nil, counted{}
	}
	b = k.answer(b, msg, q, z.kubernetes.APIConn)
	c := counted{k.counters[0], len(msg), len(k.wire), q.do}
	if from.Is6() {
		c.counters = k.counters[1]
	}
	return b, c
}

// replySource changes the control message of a packet into the one of its answer: from the packet's destination, through
// any interface.
func replySource(oob []byte) []byte {
	const data = unix.SizeofCmsghdr
	switch {
	case len(oob) < data:
		return nil
	case len(oob) >= data+unix.SizeofInet6Pktinfo && binary.NativeEndian.Uint32(oob[8:]) == unix.IPPROTO_IPV6:
		if dst := netip.AddrFrom16([16]byte(oob[data : data+16])); !dst.IsLinkLocalUnicast() {
			clear(oob[data+16 : data+20])
		}
	case len(oob) >= data+unix.SizeofInet4Pktinfo:
		clear(oob[data : data+4])
	}
	return oob
}

// passOn lets CoreDNS answer a message, in a goroutine, as CoreDNS's own server does. CoreDNS does not answer a message
// that it does not accept, or answers FORMERR or NOTIMP.
func (f *front) passOn(msg, source []byte, from *net.UDPAddr) {
	if len(msg) < headerSize {
		return
	}
	server := f.port.Load().server
	f.running.Go(func() {
		w := &frontWriter{f.conn, from, source}
		r := &dns.Msg{}
		action := dns.DefaultMsgAcceptFunc(dns.Header{
			Id: binary.BigEndian.Uint16(msg), Bits: binary.BigEndian.Uint16(msg[2:]), Qdcount: binary.BigEndian.Uint16(msg[4:]),
			Ancount: binary.BigEndian.Uint16(msg[6:]), Nscount: binary.BigEndian.Uint16(msg[8:]), Arcount: binary.BigEndian.Uint16(msg[10:]),
		})
		if action == dns.MsgIgnore {
			return
		}
		if action == dns.MsgAccept && r.Unpack(msg) == nil {
			ctx := context.WithValue(context.Background(), dnsserver.Key{}, server)
			server.ServeDNS(context.WithValue(ctx, dnsserver.LoopKey{}, 0), w, r)
			return
		}
		if action != dns.MsgAccept {
			clear(msg[4:headerSize])
			_ = r.Unpack(msg[:headerSize])
		}
		opcode := r.Opcode
		r.SetRcodeFormatError(r)
		r.Zero, r.Answer, r.Ns, r.Extra = false, nil, nil, nil
		if action == dns.MsgRejectNotImplemented {
			r.Opcode, r.Rcode = opcode, dns.RcodeNotImplemented
		}
		_ = w.WriteMsg(r)
	})
}

// A frontWriter sends CoreDNS's answer to one client.
type frontWriter struct {
	conn   *net.UDPConn
	from   *net.UDPAddr
	source []byte
}

func (w *frontWriter) LocalAddr() net.Addr  { return w.conn.LocalAddr() }
func (w *frontWriter) RemoteAddr() net.Addr { return w.from }

func (w *frontWriter) WriteMsg(m *dns.Msg) error {
	b, err := m.Pack()
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}

func (w *frontWriter) Write(b []byte) (int, error) {
	n, _, err := w.conn.WriteMsgUDP(b, w.source, w.from)
	return n, err
}

func (*frontWriter) Close() error        { return nil }
func (*frontWriter) TsigStatus() error   { return nil }
func (*frontWriter) TsigTimersOnly(bool) {}
func (*frontWriter) Hijack()             {}
