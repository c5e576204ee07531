package top

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
	"golang.org/x/tools/txtar"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/flow/top"
)

var update = flag.Bool("update", false, "write the golden parts of testdata")

// newScreen returns a screen of two nodes with some Services. Node-2 answers late.
func newScreen() *screen {
	v := top.New(time.Second, []string{"node-1", "node-2"})
	began := time.Now()
	for i := range 2 {
		s := &top.Sample{Run: 1, Millis: int64(i) * 1000, Modes: []string{"nftables"}, CountsRejects: true, CountsDrops: true}
		for n := range 20 {
			f := top.Figures{Connections: 20 - n, New: uint64(i * n)}
			if n == 4 {
				f.Rejects = uint64(7 * i)
			}
			s.Services = append(s.Services, top.ServiceFigures{Service: fmt.Sprintf("shop/web-%02d:http", n), Figures: f})
		}
		s.Services = append(s.Services, top.ServiceFigures{Service: "kube-system/kube-dns:dns", Figures: top.Figures{Connections: 3}})
		s.Endpoints = []top.EndpointFigures{
			{Service: "shop/web-01:http", Addr: netip.MustParseAddrPort("10.244.1.5:8080"), Figures: top.Figures{Connections: 12}},
			{Service: "shop/web-01:http", Addr: netip.MustParseAddrPort("10.244.2.6:8080"), Figures: top.Figures{Connections: 7, Unanswered: 2}},
		}
		v.Add("node-1", began.Add(time.Duration(i)*time.Second), s, api.Name{Namespace: "shop", Name: "web-01"})
	}
	v.Fail("node-2", began, "no running agent: Pending")
	a := newAsker(nil, time.Second)
	return &screen{session: &session{view: v, asker: a, query: top.Query{Namespace: "shop", Sort: top.ByConnections}}, namespace: "shop"}
}

func press(name string) tea.KeyPressMsg {
	special := map[string]rune{
		"enter": tea.KeyEnter, "esc": tea.KeyEscape, "up": tea.KeyUp, "down": tea.KeyDown, "end": tea.KeyEnd, "home": tea.KeyHome,
		"pgdown": tea.KeyPgDown, "backspace": tea.KeyBackspace,
	}
	if code, ok := special[name]; ok {
		return tea.KeyPressMsg{Code: code}
	}
	if name == "ctrl+c" {
		return tea.KeyPressMsg{Code: 'c', Mod: tea.ModCtrl}
	}
	return tea.KeyPressMsg{Code: []rune(name)[0], Text: name}
}

// TestScreen plays keys, and compares what a person sees then. The name of each file in the archive has the keys. A word
// as 80x14 is a new size of the terminal.
func TestScreen(t *testing.T) {
	const file = "testdata/screen.txtar"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	a := txtar.Parse(text)
	m := newScreen()
	for i, f := range a.Files {
		quit := false
		for word := range strings.FieldsSeq(f.Name) {
			var msg tea.Msg = press(word)
			var w, h int
			if n, _ := fmt.Sscanf(word, "%dx%d", &w, &h); n == 2 {
				msg = tea.WindowSizeMsg{Width: w, Height: h}
			}
			_, cmd := m.Update(msg)
			m.Update(tick(time.Now().Add(time.Second)))
			quit = cmd != nil
		}
		m.frame.at = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		lines := m.lines()
		if len(lines) > m.height {
			t.Errorf("%s: %d lines on a screen of %d", f.Name, len(lines), m.height)
		}
		for j, line := range lines {
			lines[j] = marked(line)
			if n := utf8.RuneCountInString(lines[j]); n > m.width+2 {
				t.Errorf("%s: a line of %d letters on a screen of %d: %s", f.Name, n, m.width, lines[j])
			}
		}
		got := strings.Join(lines, "\n") + "\n"
		if quit {
			got = "quit\n"
		}
		if *update {
			a.Files[i].Data = []byte(got)
		} else if got != string(f.Data) {
			t.Errorf("%s: got\n%s", f.Name, got)
		}
	}
	if *update {
		if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// marked shows the styles of a line as a letter: the selected row has ">", a row or note in color "!".
func marked(line string) string {
	mark := " "
	switch {
	case strings.Contains(line, reverse):
		mark = ">"
	case strings.Contains(line, red), strings.Contains(line, yellow):
		mark = "!"
	}
	for _, style := range []string{bold, reverse, red, yellow, plain} {
		line = strings.ReplaceAll(line, style, "")
	}
	return strings.TrimRight(mark+" "+line, " ")
}

// TestNoColor: without color there are no colors, and the selection is still visible.
func TestNoColor(t *testing.T) {
	for _, color := range []bool{true, false} {
		m := newScreen()
		m.color = color
		m.Update(tea.WindowSizeMsg{Width: 80, Height: 20})
		m.Update(tick(time.Now().Add(time.Second)))
		all := strings.Join(m.lines(), "\n")
		if strings.Contains(all, red) != color || strings.Contains(all, yellow) != color || !strings.Contains(all, reverse) {
			t.Errorf("color %v:\n%q", color, all)
		}
	}
}
