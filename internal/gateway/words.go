package gateway

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Words says what a rule does besides its choice of backends, a line each, in the order in which an engine does it.
func (r *Rule) Words() []string {
	w := words{}
	f := &r.Filters
	w.prefixes("only clients %s; others get 403", f.Allow)
	w.prefixes("clients %s get 403", f.Deny)
	w.redirect(f.Redirect)
	if c := f.CORS; c != nil {
		w.add("CORS: preflight requests are answered, origins %s", strings.Join(c.Origins, ", "))
	}
	w.limits(f.Limits)
	if a := f.BasicAuth; a != nil {
		w.add("basic authentication, %d users; others get 401", len(a.Users))
	}
	if a := f.ForwardAuth; a != nil {
		w.add("%s decides first", a.URL)
	}
	if f.MaxBody > 0 {
		w.add("a body above %s gets 413", bytesWord(f.MaxBody))
	}
	w.headers("request", f.RequestHeaders)
	w.rewrite(f.Rewrite)
	for _, m := range f.Mirrors {
		w.add("%s:%d gets a copy of %d of %d requests", m.Backend.Service.Name, m.Backend.Port, m.Numerator, m.Denominator)
	}
	w.headers("response", f.ResponseHeaders)
	if r.Session != nil {
		w.add("a session (%s) keeps a client at its endpoint", r.Session.Name)
	}
	if r.HashBy != "" {
		w.add("requests with the same %s go to the same endpoint", r.HashBy)
	}
	w.retry(r.Retry)
	w.timeouts(r)
	if f.AccessLog != nil && !*f.AccessLog {
		w.add("requests are not logged")
	}
	return w
}

// bytesWord writes a number of bytes with the largest unit that divides it.
func bytesWord(n int64) string {
	for shift, unit := range []string{"", "Ki", "Mi", "Gi"} {
		if n>>(10*(shift+1))<<(10*(shift+1)) != n || unit == "Gi" {
			return strconv.FormatInt(n>>(10*shift), 10) + " " + unit + "B"
		}
	}
	return ""
}

type words []string

func (w *words) add(format string, args ...any) { *w = append(*w, fmt.Sprintf(format, args...)) }

func (w *words) prefixes(format string, all []netip.Prefix) {
	const most = 5
	if len(all) == 0 {
		return
	}
	var texts []string
	for _, p := range all[:min(len(all), most)] {
		texts = append(texts, p.String())
	}
	text := strings.Join(texts, ", ")
	if n := len(all) - most; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	w.add(format, text)
}

func (w *words) redirect(r *Redirect) {
	if r == nil {
		return
	}
	code, to := r.Code, r.URL
	if code == 0 {
		code = 302
	}
	if to == "" {
		var parts []string
		for _, part := range []struct{ name, value string }{{"scheme", r.Scheme}, {"host", r.Host}, {"port", portWord(r.Port)}, {"path", r.Path.word()}} {
			if part.value != "" {
				parts = append(parts, part.name+" "+part.value)
			}
		}
		to = strings.Join(parts, ", ")
	}
	of := ""
	if r.OnlyHTTP {
		of = " of requests without TLS"
	}
	w.add("redirect%s (%d): %s", of, code, to)
}

func portWord(port uint16) string {
	if port == 0 {
		return ""
	}
	return strconv.Itoa(int(port))
}

// word writes a change of a path.
func (c *PathChange) word() string {
	switch {
	case c == nil:
		return ""
	case c.HasPrefix:
		return "/" + strings.TrimPrefix(c.Prefix, "/") + " in place of the matched prefix"
	}
	return c.Full
}

func (w *words) limits(l *Limits) {
	if l == nil {
		return
	}
	if l.PerSecond > 0 {
		w.add("at most %s requests a second from one client, %d at once", strconv.FormatFloat(l.PerSecond, 'g', 4, 64), l.Burst)
	}
	if l.Connections > 0 {
		w.add("at most %d requests of one client at a time", l.Connections)
	}
}

func (w *words) headers(of string, c *HeaderChange) {
	if c == nil {
		return
	}
	for _, h := range c.Set {
		w.add("%s header %s: %s", of, h.Name, h.Value)
	}
	for _, h := range c.Add {
		w.add("%s header %s: %s is added", of, h.Name, h.Value)
	}
	for _, name := range c.Remove {
		w.add("%s header %s is removed", of, name)
	}
}

func (w *words) rewrite(r *Rewrite) {
	if r == nil {
		return
	}
	if r.Host != "" {
		w.add("the backend gets the host %s", r.Host)
	}
	if r.Target != "" {
		w.add("the backend gets the path %s", r.Target)
	} else if text := r.Path.word(); text != "" {
		w.add("the backend gets the path %s", text)
	}
}

func (w *words) retry(r *Retry) {
	if r == nil || r.ConnectOnly {
		return
	}
	text := ""
	for _, code := range r.Codes {
		text += " " + strconv.Itoa(code)
	}
	w.add("sent again up to %d times, if the connection breaks or after%s", max(r.Attempts, 1), text)
	if text == "" {
		(*w)[len(*w)-1] = strings.TrimSuffix((*w)[len(*w)-1], " or after")
	}
}

func (w *words) timeouts(r *Rule) {
	all := map[string]time.Duration{
		"request": r.Timeout, "attempt": r.BackendTimeout, "connect": r.ConnectTimeout, "read": r.ReadTimeout, "send": r.SendTimeout,
	}
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if all[name] > 0 {
			texts = append(texts, name+" "+all[name].String())
		}
	}
	if len(texts) > 0 {
		w.add("timeouts: %s", strings.Join(texts, ", "))
	}
}
