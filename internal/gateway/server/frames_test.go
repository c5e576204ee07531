package server

import (
	"io"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// frames sends one request of HTTP/2 by hand, without the checks of a client. It returns the answer's status and body, or
// what ended the stream. Fields that are absent get a default.
func (b *bench) frames(fields [][2]string, body string) (status, answer string) {
	b.Helper()
	c := b.dial()
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	_, _ = io.WriteString(c, http2.ClientPreface)
	f := http2.NewFramer(c, c)
	_ = f.WriteSettings()
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: headerBlock(fields), EndHeaders: true, EndStream: body == ""})
	if body != "" {
		_ = f.WriteData(1, true, []byte(body))
	}
	d := hpack.NewDecoder(4096, nil)
	var text strings.Builder
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return err.Error(), ""
		}
		ended := false
		switch frame := frame.(type) {
		case *http2.HeadersFrame:
			got, err := d.DecodeFull(frame.HeaderBlockFragment())
			if err != nil || len(got) == 0 {
				return "no header", ""
			}
			if got[0].Name == ":status" {
				status = got[0].Value
			}
			ended = frame.StreamEnded()
		case *http2.DataFrame:
			text.Write(frame.Data())
			ended = frame.StreamEnded()
		case *http2.RSTStreamFrame:
			if status == "" {
				status = frame.ErrCode.String()
			}
			ended = true
		case *http2.GoAwayFrame:
			return frame.ErrCode.String(), ""
		}
		if ended {
			return status, text.String()
		}
	}
}

// headerBlock encodes fields, the pseudo headers first.
func headerBlock(fields [][2]string) []byte {
	var block strings.Builder
	e := hpack.NewEncoder(&block)
	has := map[string]bool{}
	for _, one := range fields {
		has[one[0]] = true
	}
	for _, one := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":authority", "shop.example"}} {
		if !has[one[0]] {
			_ = e.WriteField(hpack.HeaderField{Name: one[0], Value: one[1]})
		}
	}
	for _, one := range fields {
		_ = e.WriteField(hpack.HeaderField{Name: one[0], Value: one[1]})
	}
	return []byte(block.String())
}
