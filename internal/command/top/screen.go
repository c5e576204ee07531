package top

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/flow/top"
	"github.com/fairway-net/fairway/internal/text"
)

// A screen is the model of bubbletea: keys and answers change it, and View draws it. It has no goroutine.
type screen struct {
	session *session
	width   int
	height  int
	wide    bool
	color   bool
	// frame is what is shown. While paused is set, it stays.
	frame  frame
	paused bool
	// selected is the name of the selected row, which the selection follows when rows move. first is the index of the
	// first visible row.
	selected string
	first    int
	// typing says that keys go to the filter. before is the filter that Esc restores.
	typing bool
	before string
	// list is the query of the list of Services, while the endpoints of one are shown. opened is that Service's row.
	list   *top.Query
	opened string
	// namespace is where the key 0 returns to from all namespaces.
	namespace string
}

// tick is the time to draw a new frame.
type tick time.Time

// runScreen shows the screen until the person leaves it, or ctx ends.
func runScreen(ctx context.Context, e command.Env, s *session, wide bool) error {
	m := &screen{session: s, wide: wide, color: os.Getenv("NO_COLOR") == "", namespace: s.query.Namespace}
	if s.query.Service != (api.Name{}) {
		list := s.query
		list.Service = api.Name{}
		m.list = &list
	}
	m.frame = s.frame(time.Now())
	p := tea.NewProgram(m, tea.WithContext(ctx), tea.WithInput(e.Stdin), tea.WithOutput(e.Stdout), tea.WithoutSignalHandler())
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		ticks := time.NewTicker(s.asker.interval)
		defer ticks.Stop()
		for {
			select {
			case a := <-s.asker.answers:
				p.Send(a)
			case now := <-ticks.C:
				p.Send(tick(now))
			case <-ctx.Done():
				return
			}
		}
	}()
	_, err := p.Run()
	if errors.Is(err, tea.ErrProgramKilled) && ctx.Err() != nil || errors.Is(err, tea.ErrInterrupted) {
		return nil
	}
	return err
}

// Init implements tea.Model.
func (m *screen) Init() tea.Cmd { return nil }

// Update implements tea.Model.
func (m *screen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case answer:
		m.session.take(msg)
	case tick:
		if !m.paused {
			m.frame = m.session.frame(time.Time(msg))
		}
	case tea.KeyPressMsg:
		if msg.String() == "ctrl+c" {
			return m, tea.Quit
		}
		if m.typing {
			m.typeKey(msg)
		} else if m.key(msg.String()) {
			return m, tea.Quit
		}
	}
	return m, nil
}

// typeKey changes the filter while the person types it.
func (m *screen) typeKey(key tea.KeyPressMsg) {
	q := &m.session.query
	switch key.String() {
	case "enter":
		m.typing = false
	case "esc":
		m.typing, q.Filter = false, m.before
	case "backspace":
		_, size := utf8.DecodeLastRuneInString(q.Filter)
		q.Filter = q.Filter[:len(q.Filter)-size]
	default:
		q.Filter += key.Text
	}
	m.redraw()
}

// key obeys a key. quit is true for the key that ends the program.
func (m *screen) key(key string) (quit bool) {
	q := &m.session.query
	switch key {
	case "q":
		return true
	case "up", "k":
		m.move(-1)
	case "down", "j":
		m.move(1)
	case "pgup":
		m.move(-m.rows())
	case "pgdown":
		m.move(m.rows())
	case "home", "g":
		m.move(-len(m.frame.names()))
	case "end", "G":
		m.move(len(m.frame.names()))
	case "s":
		all := top.Sorts()
		q.Sort = top.Sort(all[(slices.Index(all, string(q.Sort))+1)%len(all)])
		m.redraw()
	case "/":
		m.typing, m.before = true, q.Filter
	case "w":
		m.wide = !m.wide
	case "p", "space":
		m.paused = !m.paused
	case "0":
		m.everywhere()
	case "enter":
		m.open()
	case "esc":
		m.back()
	}
	return false
}

// redraw makes a frame of the present query now.
func (m *screen) redraw() { m.frame = m.session.frame(time.Now()) }

// everywhere changes between all namespaces and the one that the command began with.
func (m *screen) everywhere() {
	q := &m.session.query
	if m.list != nil {
		return // the endpoints of one Service
	}
	if q.Namespace != "" {
		m.namespace, q.Namespace = q.Namespace, ""
	} else {
		q.Namespace = m.namespace
	}
	m.redraw()
}

// open shows the endpoints of the selected Service.
func (m *screen) open() {
	i := m.index()
	if m.list != nil || i < 0 || m.frame.services == nil {
		return
	}
	list, row := m.session.query, m.frame.services.Rows[i]
	m.list, m.opened = &list, row.Name()
	m.session.query.Filter = ""
	m.show(api.Name{Namespace: row.Namespace, Name: row.Service})
}

// back ends the filter, else returns to the list of Services.
func (m *screen) back() {
	switch {
	case m.session.query.Filter != "":
		m.session.query.Filter = ""
		m.redraw()
	case m.list != nil:
		m.session.query, m.list = *m.list, nil
		m.show(api.Name{})
		m.selected = m.opened
	}
}

// show shows the endpoints of a Service, or with a zero Name all Services.
func (m *screen) show(service api.Name) {
	m.session.query.Service = service
	m.session.asker.follow(service)
	m.selected, m.first = "", 0
	m.redraw()
}

// names returns the names of the rows.
func (f *frame) names() (all []string) {
	if f.routes != nil {
		for i := range f.routes.Rows {
			all = append(all, f.routes.Rows[i].Label())
		}
		return all
	}
	for i := range f.services.Rows {
		all = append(all, f.services.Rows[i].Name())
	}
	return all
}

// index returns the index of the selected row: the first row, if it is gone; -1 without rows.
func (m *screen) index() int {
	all := m.frame.names()
	i := slices.Index(all, m.selected)
	if i < 0 && len(all) > 0 {
		return 0
	}
	return i
}

func (m *screen) move(by int) {
	if i := m.index(); i >= 0 {
		all := m.frame.names()
		m.selected = all[max(0, min(i+by, len(all)-1))]
	}
}

// fixedLines are those of title, summary, head and keys.
const fixedLines = 4

// notes returns the lines of the notes, as many as there is room for: a third of the screen.
func (m *screen) notes() (lines []string) {
	for _, n := range m.frame.notes {
		lines = append(lines, text.Wrap(n, max(1, m.width))...)
	}
	room := max(0, min(m.height/3, m.height-fixedLines-2))
	if len(lines) <= room || room == 0 {
		return lines[:min(room, len(lines))]
	}
	return append(lines[:room-1], "…")
}

// rows returns the number of rows that there is room for.
func (m *screen) rows() int { return max(1, m.height-fixedLines-len(m.notes())) }

// View implements tea.Model.
func (m *screen) View() tea.View {
	v := tea.NewView(strings.Join(m.lines(), "\n"))
	v.AltScreen = true
	v.WindowTitle = "fairway top"
	return v
}

// Styles, as the terminal writes them.
const (
	bold    = "\x1b[1m"
	reverse = "\x1b[7m"
	red     = "\x1b[31m"
	yellow  = "\x1b[33m"
	plain   = "\x1b[0m"
)

// lines draws the whole screen.
func (m *screen) lines() []string {
	if m.width == 0 || m.height == 0 {
		return nil // the size of the terminal is not known yet
	}
	f := m.frame.shown()
	out := []string{m.styled(bold, m.title()), m.styled("", f.Summary())}
	table := f.Lines(m.wide, m.width)
	out = append(out, m.styled(bold, table[0]))
	body := table[1:]
	at, room := m.index(), m.rows()
	m.first = max(0, min(m.first, at, len(body)-room))
	if at >= m.first+room {
		m.first = at - room + 1
	}
	if len(body) == 0 {
		out = append(out, m.styled("", f.Nothing()))
	}
	for i := m.first; i < min(len(body), m.first+room); i++ {
		style := ""
		if m.frame.troubled(i) {
			style = m.hue(red)
		}
		if i == at {
			style += reverse
		}
		out = append(out, m.styled(style, body[i]))
	}
	notes := m.notes()
	for len(out) < m.height-1-len(notes) {
		out = append(out, "")
	}
	for _, n := range notes {
		out = append(out, m.styled(m.hue(yellow), n))
	}
	return append(out, m.styled("", m.keys()))
}

// A shown is a table with its summary.
type shown interface {
	Lines(wide bool, width int) []string
	Summary() string
	Nothing() string
}

func (f *frame) shown() shown {
	if f.routes != nil {
		return f.routes
	}
	return f.services
}

// troubled reports whether packets or requests of the row are refused, or connections get no answer.
func (f *frame) troubled(i int) bool {
	if f.routes != nil {
		return f.routes.Rows[i].ServerErrorsPerSecond > 0
	}
	positive := func(f *float64) bool { return f != nil && *f > 0 }
	r := f.services.Rows[i]
	return r.Unanswered > 0 || positive(r.RejectsPerSecond) || positive(r.DropsPerSecond)
}

func (m *screen) hue(color string) string {
	if !m.color {
		return ""
	}
	return color
}

// styled cuts a line to the width of the screen, and gives it a style. A selected line is reverse over the whole width.
func (m *screen) styled(style, line string) string {
	runes := []rune(line)
	if len(runes) > m.width {
		runes = append(runes[:max(0, m.width-1)], '…')
	}
	line = string(runes)
	if strings.HasSuffix(style, reverse) {
		line += strings.Repeat(" ", m.width-len(runes))
	}
	if style == "" {
		return line
	}
	return style + line + plain
}

func (m *screen) title() string {
	q := m.session.query
	where := "all namespaces"
	switch {
	case m.list != nil:
		where = "endpoints of " + q.Service.String()
	case q.Namespace != "":
		where = "namespace " + q.Namespace
	}
	line := fmt.Sprintf("fairway top   %s   by %s   %s", where, m.order(), m.frame.at.Format(time.TimeOnly))
	if q.Filter != "" && !m.typing {
		line += "   filter " + q.Filter
	}
	if m.paused {
		line += "   PAUSED"
	}
	return line
}

// order names the figure that orders the rows.
func (m *screen) order() string {
	sort := m.session.query.Sort
	switch {
	case m.session.routes == nil:
		return string(sort)
	case sort == top.ByConnections || sort == top.ByNew:
		return "requests"
	case sort == top.ByRejects:
		return "errors"
	}
	return string(sort)
}

func (m *screen) keys() string {
	switch {
	case m.typing:
		return "/" + m.session.query.Filter + "▏ Enter: keep  Esc: drop"
	case m.session.routes != nil:
		return "/ filter  s sort  0 all namespaces  p pause  q quit"
	case m.list != nil:
		return "Esc back  / filter  s sort  w wide  p pause  q quit"
	}
	return "Enter endpoints  / filter  s sort  0 all namespaces  w wide  p pause  q quit"
}
