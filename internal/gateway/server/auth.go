package server

import (
	"crypto/hmac"
	"crypto/md5"
	"crypto/rand"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/fairway-net/fairway/internal/gateway"
)

// basicAuth asks for a user's password.
func (x *exchange) basicAuth(f *gateway.BasicAuth) *reply {
	line, _ := x.in.Header("Authorization")
	scheme, credentials, _ := strings.Cut(line, " ")
	if strings.EqualFold(scheme, "basic") {
		if b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(credentials)); err == nil {
			user, password, ok := strings.Cut(string(b), ":")
			hash, known := f.Users[user]
			if !known {
				hash = noUser
			}
			matches, busy := x.srv.passwords.check(hash, password, x.started)
			switch {
			case busy:
				return x.refuse(503, "too many passwords are being checked")
			case ok && known && matches:
				return nil
			}
		}
	}
	realm := f.Realm
	if realm == "" {
		realm = "Authentication Required"
	}
	r := x.refuse(401, "no valid password")
	r.headers = append(r.headers, gateway.Header{Name: "Www-Authenticate", Value: `Basic realm="` + strings.ReplaceAll(printable(realm), `"`, "'") + `", charset="UTF-8"`})
	return r
}

// printable removes control characters. Unlike clean, it keeps spaces.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, s)
}

// noUser is the hash of no password. An unknown name takes as long as a known one.
const noUser = "$2y$10$abcdefghijklmnopqrstuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuu"

// passwords checks passwords. bcrypt is slow on purpose, so few are checked at a time, and a result counts for a while.
type passwords struct {
	slots chan struct{}
	key   []byte
	mu    sync.Mutex
	known map[[sha256.Size]byte]knownPassword
}

type knownPassword struct {
	matches bool
	until   time.Time
}

const (
	passwordTime   = time.Minute
	maxPasswords   = 10_000
	passwordWait   = 2 * time.Second
	maxPasswordLen = 512
)

func newPasswords() *passwords {
	p := &passwords{slots: make(chan struct{}, max(runtime.GOMAXPROCS(0)/2, 1)), key: make([]byte, 32), known: map[[sha256.Size]byte]knownPassword{}}
	_, _ = rand.Read(p.key) // crypto/rand does not fail
	return p
}

// check reports whether a hash of htpasswd is of a password. busy: it cannot be checked now.
func (p *passwords) check(hash, password string, now time.Time) (matches, busy bool) {
	if len(password) > maxPasswordLen {
		return false, false
	}
	if !strings.HasPrefix(hash, "$2") {
		return verify(hash, password), false
	}
	m := hmac.New(sha256.New, p.key)
	m.Write([]byte(hash))
	m.Write([]byte{0})
	m.Write([]byte(password))
	key := [sha256.Size]byte(m.Sum(nil))
	p.mu.Lock()
	k, ok := p.known[key]
	p.mu.Unlock()
	if ok && now.Before(k.until) {
		return k.matches, false
	}
	wait := time.NewTimer(passwordWait)
	defer wait.Stop()
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-wait.C:
		return false, true
	}
	matches = verify(hash, password)
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.known) >= maxPasswords {
		clear(p.known)
	}
	p.known[key] = knownPassword{matches, now.Add(passwordTime)}
	return matches, false
}

// clean forgets old results.
func (p *passwords) clean(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, k := range p.known {
		if now.After(k.until) {
			delete(p.known, key)
		}
	}
}

// verify checks a password with a hash as htpasswd writes it: bcrypt, apr1 or SHA. Others match no password.
func verify(hash, password string) bool {
	switch {
	case strings.HasPrefix(hash, "$2"):
		return bcrypt.CompareHashAndPassword([]byte(hash), []byte(password)) == nil
	case strings.HasPrefix(hash, "$apr1$"):
		salt, want, ok := strings.Cut(strings.TrimPrefix(hash, "$apr1$"), "$")
		return ok && subtle.ConstantTimeCompare([]byte(apr1(password, salt)), []byte(want)) == 1
	case strings.HasPrefix(hash, "{SHA}"):
		sum := sha1.Sum([]byte(password))
		return subtle.ConstantTimeCompare([]byte(base64.StdEncoding.EncodeToString(sum[:])), []byte(hash[len("{SHA}"):])) == 1
	}
	return false
}

// apr1 is Apache's variant of md5-crypt. It returns the 22 letters behind the salt.
func apr1(password, salt string) string {
	salt = salt[:min(len(salt), 8)]
	inner := md5.Sum([]byte(password + salt + password))
	text := []byte(password + "$apr1$" + salt)
	for left := len(password); left > 0; left -= md5.Size {
		text = append(text, inner[:min(left, md5.Size)]...)
	}
	for n := len(password); n > 0; n >>= 1 {
		if n&1 == 1 {
			text = append(text, 0)
		} else {
			text = append(text, password[0])
		}
	}
	sum := md5.Sum(text)
	for round := range 1000 {
		var b []byte
		if round&1 == 1 {
			b = append(b, password...)
		} else {
			b = append(b, sum[:]...)
		}
		if round%3 != 0 {
			b = append(b, salt...)
		}
		if round%7 != 0 {
			b = append(b, password...)
		}
		if round&1 == 1 {
			b = append(b, sum[:]...)
		} else {
			b = append(b, password...)
		}
		sum = md5.Sum(b)
	}
	const digits = "./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	var out strings.Builder
	put := func(v uint, n int) {
		for range n {
			out.WriteByte(digits[v&63])
			v >>= 6
		}
	}
	for _, t := range [][3]int{{0, 6, 12}, {1, 7, 13}, {2, 8, 14}, {3, 9, 15}, {4, 10, 5}} {
		put(uint(sum[t[0]])<<16|uint(sum[t[1]])<<8|uint(sum[t[2]]), 4)
	}
	put(uint(sum[11]), 2)
	return out.String()
}
