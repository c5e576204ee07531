package dns

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"sync"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/kubernetes"
	"github.com/miekg/dns"
)

// Limits of the kept answers of one port. An entry costs its bytes and about keptOverhead.
const (
	maxKeptBytes = 16 << 20
	keptOverhead = 600
	maxKeptSize  = 1220 // of one answer; CoreDNS compresses larger ones for IPv6 clients
)

// A kept answer is a message that the kubernetes plugin made, with the objects that it read.
type kept struct {
	reads
	name     string // of the question
	wire     []byte // without identifier, OPT record, and bits of the question; nil: CoreDNS has to answer
	serialAt int    // the offset of the serial number; 0: none
	records  int    // the number of equally long records, which get a random order
	recordAt int    // the offset of the first record
	length   int    // of one record
	counters [2]*counters
}

// A keptStore has the kept answers by question.
type keptStore struct {
	mu    sync.RWMutex
	all   map[string]*kept
	bytes int
}

func (s *keptStore) get(key []byte) *kept {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.all[string(key)]
}

// put adds an answer. A full store forgets others, which ones is left to chance.
func (s *keptStore) put(key []byte, k *kept) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(string(key))
	for other := range s.all {
		if s.bytes+k.size(len(key)) <= maxKeptBytes {
			break
		}
		s.remove(other)
	}
	s.all[string(key)] = k
	s.bytes += k.size(len(key))
}

func (s *keptStore) remove(key string) {
	if old := s.all[key]; old != nil {
		s.bytes -= old.size(len(key))
		delete(s.all, key)
	}
}

func (k *kept) size(key int) int { return key + len(k.wire) + keptOverhead }

// newKept asks the kubernetes plugin, which only reads memory. It returns nil if the answer should not be kept.
func (z *frontZone) newKept(q question) (k *kept) {
	w := &witness{apiConn: z.kubernetes.APIConn}
	k = &kept{name: nameOf(q.name)}
	defer func() {
		if recover() != nil {
			k = nil // CoreDNS counts it
		}
	}()
	if !w.HasSynced() {
		return nil
	}
	asked := &dns.Msg{}
	asked.Question = []dns.Question{{Name: k.name, Qtype: q.qtype, Qclass: dns.ClassINET}}
	asked.SetEdns0(maxKeptSize, false)
	plugin := *z.kubernetes.Kubernetes
	plugin.APIConn, plugin.Next = w, nextOfWitness{w}
	r := &answerRecorder{}
	_, err := kubernetesHandler{&plugin}.ServeDNS(context.Background(), r, asked)
	if err == nil && r.answer != nil && !w.other {
		z.fill(k, r.answer)
	}
	k.reads = w.reads
	return k
}

// fill sets the message of a kept answer, if it has one of two forms: addresses of the name alone, or an SOA record alone.
func (z *frontZone) fill(k *kept, m *dns.Msg) {
	if len(m.Extra) > 0 || m.Truncated || len(m.Answer) > 1 && !z.shuffle {
		return
	}
	ttl := uint32(0)
	switch {
	case len(m.Answer) > 0 && len(m.Ns) == 0 && m.Rcode == dns.RcodeSuccess:
		first := *m.Answer[0].Header()
		for _, rr := range m.Answer {
			h := *rr.Header()
			if first.Rdlength, h.Rdlength = 0, 0; h != first || h.Name != m.Question[0].Name || h.Rrtype != m.Question[0].Qtype {
				return
			}
		}
		ttl = first.Ttl
	case len(m.Answer) == 0 && len(m.Ns) == 1 && (m.Rcode == dns.RcodeSuccess || m.Rcode == dns.RcodeNameError):
		if m.Ns[0].Header().Rrtype != dns.TypeSOA {
			return
		}
		ttl = m.Ns[0].Header().Ttl
	default:
		return
	}
	if z.cached && (ttl < minCacheTTL || ttl > z.maxTTL) {
		return // the plugin cache would change the TTL
	}
	m.Id, m.Compress = 0, false
	wire, err := m.Pack()
	if err != nil || len(wire) > maxKeptSize {
		return
	}
	k.wire, k.records = wire, len(m.Answer)
	if k.records == 0 {
		k.serialAt = len(wire) - 20
	} else {
		k.recordAt = headerSize + len(nameToWire(m.Question[0].Name)) + 4
		k.length = (len(wire) - k.recordAt) / k.records
	}
	k.counters = z.countersOf(m)
}

// answer appends the answer to a question. It returns nil if the answer is too large for the client.
func (k *kept) answer(b []byte, id []byte, q question, conn apiConn) []byte {
	size := len(k.wire)
	if q.hasOPT {
		size += optSize
	}
	if k.wire == nil || size > min(q.size, maxKeptSize) {
		return nil
	}
	start := len(b)
	b = append(b, k.wire...)
	m := b[start:]
	copy(m, id[:2])
	binary.BigEndian.PutUint16(m[2:], binary.BigEndian.Uint16(m[2:])|q.bits&(bitRD|bitCD))
	if k.serialAt > 0 {
		binary.BigEndian.PutUint32(m[k.serialAt:], uint32(conn.Modified(kubernetes.ModifiedInternal)))
	}
	if k.records > 1 {
		k.shuffle(m)
	}
	if q.hasOPT {
		binary.BigEndian.PutUint16(m[10:], 1)
		b = append(b, id[len(id)-optSize:]...)
	}
	return b
}

// shuffle gives the records a random order, as the plugin loadbalance does.
func (k *kept) shuffle(m []byte) {
	record := func(i int) []byte { return m[k.recordAt+i*k.length:][:k.length] }
	rand.Shuffle(k.records, func(i, j int) {
		a, b := record(i), record(j)
		for at := range a {
			a[at], b[at] = b[at], a[at]
		}
	})
}

// nextOfWitness is what follows the kubernetes plugin for a witness.
type nextOfWitness struct{ w *witness }

func (nextOfWitness) Name() string { return "kept" }

func (n nextOfWitness) ServeDNS(context.Context, dns.ResponseWriter, *dns.Msg) (int, error) {
	n.w.other = true
	return dns.RcodeServerFailure, plugin.Error("kept", errNotRead)
}

// An answerRecorder keeps the answer of a plugin.
type answerRecorder struct{ answer *dns.Msg }

func (r *answerRecorder) WriteMsg(m *dns.Msg) error { r.answer = m; return nil }
func (*answerRecorder) Write([]byte) (int, error)   { return 0, errNotRead }
func (*answerRecorder) LocalAddr() net.Addr         { return &net.UDPAddr{IP: net.IPv4zero} }
func (*answerRecorder) RemoteAddr() net.Addr        { return &net.UDPAddr{IP: net.IPv4zero} }
func (*answerRecorder) Close() error                { return nil }
func (*answerRecorder) TsigStatus() error           { return nil }
func (*answerRecorder) TsigTimersOnly(bool)         {}
func (*answerRecorder) Hijack()                     {}

// nameOf returns the text of a plain name without root label.
func nameOf(wire []byte) string {
	b := make([]byte, 0, len(wire)+1)
	for at := 0; at < len(wire); at += 1 + int(wire[at]) {
		b = append(append(b, wire[at+1:at+1+int(wire[at])]...), '.')
	}
	if len(b) == 0 {
		return "."
	}
	return string(b)
}

// nameToWire returns a name as in messages.
func nameToWire(name string) []byte {
	b := make([]byte, 256)
	n, err := dns.PackDomainName(dns.Fqdn(name), b, 0, nil, false)
	if err != nil {
		return nil
	}
	return b[:n]
}
