package top

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

var update = flag.Bool("update", false, "write the golden parts of testdata")

// TestText runs the archives of testdata. Each file of an archive is one event, and its name says what and when:
//
//	ask                  namespace, service, filter and sort, one a line
//	1s sample node-1     a sample, see parseSample
//	1s fail node-1       why the node did not answer
//	2s frame|wide|json   golden: what the View shows
//	rules                the Services of a node for a Tally: name, address, "carries"
//	round                connections, see parseConnection; then golden: "sample"
func TestText(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			a := txtar.Parse(text)
			s := &script{t: t}
			for i, f := range a.Files {
				want, golden := s.play(f.Name, string(f.Data))
				if golden && *update {
					a.Files[i].Data = []byte(want)
				} else if golden && want != string(f.Data) {
					t.Errorf("%s: got\n%s", f.Name, want)
				}
			}
			if *update {
				if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

type script struct {
	t       *testing.T
	view    *View
	ask     Query
	tally   Tally
	rules   []Rules
	refused map[api.PortName]Refused
}

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func (s *script) play(name, data string) (result string, golden bool) {
	s.t.Helper()
	if s.view == nil {
		s.view = New(time.Second, nil)
	}
	at, event, of := epoch, name, ""
	if when, rest, ok := strings.Cut(name, " "); ok {
		d, err := time.ParseDuration(when)
		if err != nil {
			s.t.Fatal(err)
		}
		at = at.Add(d)
		event, of, _ = strings.Cut(rest, " ")
	}
	switch event {
	case "ask":
		s.query(data)
	case "sample":
		if of == "" {
			var b strings.Builder
			var sample Sample
			s.tally.Fill(&sample, s.refused, s.ask.Service)
			for _, f := range sample.Services {
				fmt.Fprintln(&b, strings.TrimSpace(fmt.Sprintf("%s %s", f.Service, f.Figures)))
			}
			for _, f := range sample.Endpoints {
				fmt.Fprintln(&b, strings.TrimSpace(fmt.Sprintf("  %s %s", f.Addr, f.Figures)))
			}
			return b.String(), true
		}
		s.view.Asked(of, at)
		if strings.TrimSpace(data) != "" {
			s.view.Add(of, at, s.parseSample(data), s.ask.Service)
		} else {
			s.view.nodes[of] = &node{}
			s.view.Asked(of, at)
		}
	case "fail":
		s.view.Fail(of, at, strings.TrimSpace(data))
	case "rules":
		s.parseRules(data)
	case "round":
		s.tally.Begin(s.rules)
		for line := range strings.Lines(data) {
			s.tally.Add(s.parseConnection(line))
		}
		s.tally.End()
	case "frame", "wide":
		var b bytes.Buffer
		if err := s.view.Frame(at, s.ask).WriteTable(&b, event == "wide"); err != nil {
			s.t.Fatal(err)
		}
		return b.String(), true
	case "json":
		out, err := json.MarshalIndent(s.view.Frame(at, s.ask), "", "  ")
		if err != nil {
			s.t.Fatal(err)
		}
		return string(out) + "\n", true
	default:
		s.t.Fatalf("event %q", name)
	}
	return "", false
}

// String returns the figures that are not 0.
func (f Figures) String() string {
	var all []string
	for _, one := range []struct {
		n    uint64
		name string
	}{
		{uint64(f.Connections), "open"}, {uint64(f.Unanswered), "unanswered"}, {f.New, "new"}, {f.Bytes, "bytes"},
		{f.Rejects, "rejects"}, {f.Drops, "drops"},
	} {
		if one.n > 0 {
			all = append(all, fmt.Sprint(one.n, " ", one.name))
		}
	}
	return strings.Join(all, " ")
}

func (s *script) query(data string) {
	s.ask = Query{}
	for line := range strings.Lines(data) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		var err error
		switch key {
		case "namespace":
			s.ask.Namespace = value
		case "service":
			s.ask.Service, err = api.ParseName(value)
		case "filter":
			s.ask.Filter = value
		case "sort":
			s.ask.Sort, err = ParseSort(value)
		default:
			err = fmt.Errorf("question %q", line)
		}
		if err != nil {
			s.t.Fatal(err)
		}
	}
}

// parseSample reads "clock 1000 mode nftables bytes rejects drops" and lines such as "shop/web:http 3 open 5 new". A
// line that begins with spaces is an endpoint.
func (s *script) parseSample(data string) *Sample {
	out := &Sample{}
	name := ""
	for line := range strings.Lines(data) {
		words := strings.Fields(line)
		switch {
		case words[0] == "clock":
			s.parseHead(out, words)
		case strings.HasPrefix(line, " "):
			out.Endpoints = append(out.Endpoints, EndpointFigures{name, netip.MustParseAddrPort(words[0]), s.parseFigures(words[1:])})
		default:
			name = words[0]
			out.Services = append(out.Services, ServiceFigures{name, s.parseFigures(words[1:])})
		}
	}
	return out
}

func (s *script) parseHead(out *Sample, words []string) {
	number := func(i int) int64 {
		n, err := strconv.ParseInt(words[i+1], 10, 64)
		if err != nil {
			s.t.Fatal(err)
		}
		return n
	}
	for i, w := range words {
		switch w {
		case "clock":
			out.Millis = number(i)
		case "run":
			out.Run = number(i)
		case "entries":
			out.Entries = int(number(i))
		case "read":
			out.Read = int(number(i))
		case "leftout":
			out.LeftOut = int(number(i))
		case "mode":
			out.Modes = strings.Split(words[i+1], ",")
		case "bytes":
			out.CountsBytes = true
		case "rejects":
			out.CountsRejects = true
		case "drops":
			out.CountsDrops = true
		case "connect":
			out.AtConnect = true
		}
	}
}

func (s *script) parseFigures(words []string) (f Figures) {
	for i := 0; i+1 < len(words); i += 2 {
		n, err := strconv.ParseInt(words[i], 10, 64)
		if err != nil {
			s.t.Fatal(err)
		}
		switch words[i+1] {
		case "open":
			f.Connections = int(n)
		case "unanswered":
			f.Unanswered = int(n)
		case "new":
			f.New = uint64(n)
		case "bytes":
			f.Bytes = uint64(n)
		case "rejects":
			f.Rejects = uint64(n)
		case "drops":
			f.Drops = uint64(n)
		default:
			s.t.Fatalf("figure %q", words[i+1])
		}
	}
	return f
}

// parseRules reads lines such as "shop/web:http 10.96.0.1:80/TCP". The line "carries" makes the mode one that carries
// connections itself. "shop/web:http 3 rejects" are counters.
func (s *script) parseRules(data string) {
	var fronts []*service.Frontend
	r := Rules{Local: func(a netip.Addr) bool { return a == netip.MustParseAddr("192.168.0.1") }}
	s.refused = map[api.PortName]Refused{}
	for line := range strings.Lines(data) {
		words := strings.Fields(line)
		name, err := api.ParsePortName(words[0])
		switch {
		case words[0] == "carries":
			r.Carries = true
			continue
		case err != nil:
			s.t.Fatal(err)
		case len(words) == 3:
			f := s.parseFigures(words[1:])
			s.refused[name] = Refused{f.Rejects, f.Drops}
			continue
		}
		addr, proto, _ := strings.Cut(words[1], "/")
		p, err := api.ParseProto(proto)
		if err != nil {
			s.t.Fatal(err)
		}
		route := &service.Route{}
		fronts = append(fronts, &service.Frontend{Addr: netip.MustParseAddrPort(addr), Proto: p, Service: name, Internal: route, External: route})
	}
	r.Index = service.NewIndex(service.NewTable(service.Settings{NodePorts: []netip.Prefix{netip.MustParsePrefix("192.168.0.0/24")}}, fronts))
	s.rules = []Rules{r}
}

// parseConnection reads "ID PROTOCOL CLIENT FRONTEND ENDPOINT open|unanswered|ended BYTES".
func (s *script) parseConnection(line string) (c Connection) {
	w := strings.Fields(line)
	id, err := strconv.ParseUint(w[0], 10, 32)
	if err != nil {
		s.t.Fatal(err)
	}
	if c.Proto, err = api.ParseProto(w[1]); err != nil {
		s.t.Fatal(err)
	}
	if c.Bytes, err = strconv.ParseUint(w[6], 10, 64); err != nil {
		s.t.Fatal(err)
	}
	c.ID, c.Client, c.Frontend, c.Endpoint = uint32(id), netip.MustParseAddrPort(w[2]), netip.MustParseAddrPort(w[3]), netip.MustParseAddrPort(w[4])
	c.Open, c.Unanswered = w[5] == "open", w[5] == "unanswered"
	return c
}

// TestCheck: names that a terminal would obey, and numbers that no node has, are refused.
func TestCheck(t *testing.T) {
	for _, s := range []Sample{
		{Services: []ServiceFigures{{Service: "shop/\x1b[2Jweb"}}},
		{Services: []ServiceFigures{{Service: "web"}}},
		{Services: []ServiceFigures{{Service: "shop/web:HTTP"}}},
		{Services: []ServiceFigures{{Service: "shop/web", Figures: Figures{Connections: -1}}}},
		{Endpoints: []EndpointFigures{{Service: "shop/web"}}},
		{Endpoints: []EndpointFigures{{Service: "shop/web", Addr: netip.MustParseAddrPort("[fe80::1%\x1b[2J]:80")}}},
		{Modes: []string{"nft\n"}},
		{Millis: -1},
		{Services: make([]ServiceFigures, MaxRows+1)},
	} {
		if err := s.Check(); err == nil {
			t.Errorf("%+v is accepted", s)
		}
	}
	for _, name := range []string{"shop/web:http", "shop/web", "shop/pod/web-0.a:80"} {
		if err := (&Sample{Services: []ServiceFigures{{Service: name}}}).Check(); err != nil {
			t.Error(err)
		}
	}
	v := New(time.Second, nil)
	v.Fail("node-1", epoch, "no\x1b[2J\nway "+strings.Repeat("x", 1000))
	if notes := v.Frame(epoch, Query{}).Notes; len(notes) != 1 || strings.ContainsAny(notes[0], "\x1b\n") || len(notes[0]) > 250 {
		t.Errorf("notes %q", notes)
	}
}

// TestShort: rates have at most three digits, so that columns stay narrow.
func TestShort(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.5: "0.5", 9.94: "9.9", 9.96: "10", 999: "999", 999.6: "1.0k", 12345: "12k", 1.5e6: "1.5M", 2e15: "2000T"} {
		if got := short(&v); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
}
